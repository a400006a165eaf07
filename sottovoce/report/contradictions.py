"""Where the files of a finished run contradict each other, its page among them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from sottovoce.auditing.folder_check import WORDS, FolderCheck, Given, as_read
from sottovoce.errors import InputError
from sottovoce.report.page import document, page
from sottovoce.report.plain_words import NOBODY_NAMED
from sottovoce.run.layout import PAGE, RunFiles
from sottovoce.run.privacy_document import contradictions, result_contradictions
from sottovoce.run.run_documents import RunDocuments
from sottovoce.support.files import read_bytes
from sottovoce.support.text import parse_json

DATA = re.compile(r'<script id="data" type="application/json">(.*?)</script>', re.DOTALL)


HERE = "<!-- data -->"
"""Stands where the data of a page is, once and in its place."""


def contradictions_in(run: RunDocuments) -> list[str]:
    """Each contradiction in a sentence."""
    return [
        *contradictions(run.experiment, run.privacy),
        *result_contradictions(run.experiment, run.privacy, run.result, run.lines),
        *check_page(run).findings,
    ]


def check_page(run: RunDocuments) -> FolderCheck:
    """The run's own page, if it has one: whether it is what would be written about its files today."""
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
    today = as_read({"left_out": 0, **document([about], title)})
    found.compare(PAGE.name, stated, [Given("what the files of the run give", today)])
    if about.experiment.about.contact != run.experiment.about.contact:
        found.leave_out(PAGE.name, ["contact"], WORDS)
    if DATA.sub(HERE, text) != DATA.sub(HERE, page([about], title)):
        found.findings.append(f"{PAGE.name}: its text or its scripts are not those of a page that sotto writes")
    return found


def _with_words_of(run: RunDocuments, stated: Any) -> RunDocuments:
    """The run, where its page says that it lies, and with the contact that the page names."""
    there, (_, answers) = replace(run, folder=Path(stated["folder"])), stated["plain"]["questions"][-1]
    return there if answers[0].startswith(NOBODY_NAMED) else there.with_contact(str(answers[0]))
