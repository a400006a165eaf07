"""Whether the page of a finished run shows what the files of its folder say."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from sottovoce.errors import InputError, shortened
from sottovoce.report.page import document, made_by, page
from sottovoce.report.plain_words import NOBODY_NAMED
from sottovoce.run.folder_check import NOT_GIVEN, WORDS, FolderCheck, Given, as_read
from sottovoce.run.layout import PAGE, RunFiles
from sottovoce.run.run_documents import RunDocuments
from sottovoce.support.files import read_bytes
from sottovoce.support.text import parse_json

DATA = re.compile(r'<script id="data" type="application/json">(.*?)</script>', re.DOTALL)


HERE = "<!-- data -->"
"""Stands where the data of a page is, once and in its place."""


def check_page(run: RunDocuments) -> FolderCheck:
    """The run's own page, if it has one: whether it is what would be written about its files today.

    Another version words and draws it in another way: then figures are compared, and the rest is not checked.
    """
    found = FolderCheck()
    try:
        text = read_bytes(RunFiles(run.folder).page).decode()
    except FileNotFoundError:
        return found
    except (OSError, InputError, UnicodeDecodeError):
        found.findings.append(f"{PAGE.name}: it is not a file that can be read")
        return found
    try:
        stated = parse_json(DATA.findall(text)[0], unique_keys=True)
        about, title = _with_words_of(run, stated["runs"][0]), str(stated["title"])
    except (ValueError, LookupError, TypeError):
        found.findings.append(f"{PAGE.name}: it is not a page of a run")
        return found
    today, version = as_read({"left_out": 0, **document([about], title)}), stated.get("version")
    other = "" if version == made_by() else f"made by version {shortened(str(version))}"
    found.compare(PAGE.name, stated, [Given("what the files of the run give", today)], other or NOT_GIVEN, words=other)
    if about.experiment.about.contact != run.experiment.about.contact:
        found.leave_out(PAGE.name, ["contact"], WORDS)
    if other:
        found.leave_out(PAGE.name, ["text and scripts"], other)
    elif DATA.sub(HERE, text) != DATA.sub(HERE, page([about], title)):
        found.findings.append(f"{PAGE.name}: its text or its scripts are not those of a page that sotto writes")
    return found


def _with_words_of(run: RunDocuments, stated: Any) -> RunDocuments:
    """The run, where its page says that it lies, and with the contact that the page names."""
    there, (_, answers) = replace(run, folder=Path(stated["folder"])), stated["plain"]["questions"][-1]
    return there if answers[0].startswith(NOBODY_NAMED) else there.with_contact(str(answers[0]))
