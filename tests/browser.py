"""Report pages in a real browser; the fixtures `chromium` and `opened` are in conftest.py."""

from __future__ import annotations

import json
import re
from pathlib import Path


def inside(page: Path) -> dict:
    """The data of a page."""
    found = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page.read_text(), flags=re.DOTALL)
    assert len(found) == 1
    return json.loads(found[0])


def open_page(context, file: Path, wrong: list[str]):
    """The page of a file when it is drawn; complaints and requests are appended to `wrong`."""
    page = context.new_page()
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: request.url != file.as_uri() and wrong.append(request.url))
    page.goto(file.as_uri())
    page.wait_for_selector("#graph figure h3")
    return page


def questions(run: dict) -> dict[str, str]:
    """The questions that a page answers in plain words about a run, with their answers."""
    return {question: " ".join(answers) for question, answers in run["plain"]["questions"]}
