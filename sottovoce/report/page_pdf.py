"""A page as PDF, printed by a browser that is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from sottovoce.errors import InputError, SottovoceError
from sottovoce.support.files import check_writable, write_bytes

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge", "chrome")
PATIENCE = 120.0
"""Seconds that a browser may take."""


def print_page(page: Path, out: Path) -> Path:
    """Print a page that lies on disk to A4; the browser is offline, with a profile that is thrown away."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise InputError(
            "--pdf, but no browser is installed", f"pages are printed by one of {', '.join(BROWSERS[:3])}",
            "install it, or open the page and print it from there",
        )  # fmt: skip
    target = check_writable(out)
    with tempfile.TemporaryDirectory(prefix="sotto-") as folder:
        printed = Path(folder) / "page.pdf"
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [
            browser, "--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking", *sandbox,
            "--disable-component-update", "--disable-sync", "--no-pdf-header-footer",
            f"--user-data-dir={folder}/profile", f"--print-to-pdf={printed}", page.resolve().as_uri(),
        ]  # fmt: skip
        try:
            subprocess.run(command, check=False, timeout=PATIENCE, capture_output=True, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            raise SottovoceError(f"{browser} did not print the page within {PATIENCE:.0f} seconds") from None
        if not printed.exists():
            raise SottovoceError(f"{browser} printed nothing; open {page} in it and print it from there")
        write_bytes(target, printed.read_bytes(), private=True)
    return out
