"""Where the files of a finished run contradict each other, its page among them."""

from __future__ import annotations

import re

from sottovoce.errors import InputError
from sottovoce.report.rounding import rounded
from sottovoce.run.claim_consistency import contradictions, result_contradictions
from sottovoce.run.layout import RunFiles
from sottovoce.run.run_documents import RunDocuments
from sottovoce.support.regular_files import read_bytes
from sottovoce.support.text import parse_json

DATA = re.compile(rb'<script id="data" type="application/json">(.*?)</script>', re.DOTALL)


def contradictions_in(run: RunDocuments) -> list[str]:
    """Each contradiction in a sentence."""
    return [
        *contradictions(run.experiment, run.privacy),
        *result_contradictions(run.experiment, run.privacy, run.result, run.lines),
        *_on_page(run),
    ]


def _on_page(run: RunDocuments) -> list[str]:
    """The headline that the run's own page shows, if it has one, against that of `privacy.json`."""
    try:
        content = read_bytes(RunFiles(run.folder).page)
    except FileNotFoundError:
        return []
    except (OSError, InputError):
        return ["report.html: it is not a file that can be read"]
    headline = run.privacy.headline
    stated = rounded(headline.epsilon)
    try:
        shown = [one["epsilon"] for one in parse_json(DATA.findall(content)[0])["runs"]]
    except (ValueError, LookupError, TypeError):
        return ["report.html: it is not a page of a run"]
    return [] if shown == [stated] else [f"report.html: it shows epsilon {shown}, and privacy.json has {stated}"]
