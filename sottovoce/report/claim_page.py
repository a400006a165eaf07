"""A page for whoever has to judge a claim, such as an editor: what is claimed, what is so, and how to repeat it."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from sottovoce._version import __version__
from sottovoce.auditing.outside_claims import Judgement
from sottovoce.privacy.rounding import round_up
from sottovoce.report.page import asset
from sottovoce.support.files import check_writable, write_text

TITLE = "A claim, checked"


def write_claim_page(
    place: Path,
    judgement: Judgement,
    *,
    title: str | None,
    settings: Mapping[str, str],
    commands: Sequence[str],
    findings: Sequence[str] = (),
) -> None:
    """Write the page; it holds no script, and asks nobody for anything."""
    write_text(check_writable(place), claim_page(judgement, title or TITLE, settings, commands, findings))


def claim_page(
    judgement: Judgement, title: str, settings: Mapping[str, str], commands: Sequence[str], findings: Sequence[str] = ()
) -> str:
    """The page as text: what speaks against the run's folder, if anything does, and then the outcome."""
    claim, least, most = judgement.claim, judgement.least, judgement.most
    claimed = {
        "epsilon": f"{claim.epsilon:g}", "delta": f"{claim.delta:g}", "adjacency": claim.adjacency,
        "change": claim.change, "against": claim.view, "by": claim.paper, "in words": claim.words,
    }  # fmt: skip
    found = {
        "at least": "nothing was shown" if least is None else f"{least.sentence}; {least.how}",
        "at most": "nothing is proven" if most is None else f"{round_up(most)}",
    }
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        *(f"<p><b>Finding: {html.escape(one)}</b></p>" for one in findings),
        *(["<p>The folder contradicts itself: what follows is about its settings, and not about a run.</p>"]
          if findings else []),
        f'<p id="outcome"><b>{html.escape(judgement.sentence)}</b></p>',
        _table("What is claimed", claimed), _table("What is so: epsilon at this delta", found),
        _table("Settings", settings), "<h2>How to repeat it</h2>",
        *(f"<p><code>{html.escape(command)}</code></p>" for command in commands),
        "<p>A claim is refuted only by a lower bound above it. An upper bound above a claim refutes nothing.</p>",
        f"<p>sottovoce {__version__}</p>",
    ]  # fmt: skip
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{asset('page.css')}</style></head>\n<body><main>\n" + "\n".join(parts) + "\n</main></body>\n</html>\n"
    )


def _table(heading: str, rows: Mapping[str, str]) -> str:
    shown = (f"<tr><th>{html.escape(key)}</th><td>{html.escape(text)}</td></tr>" for key, text in rows.items() if text)
    return f"<h2>{html.escape(heading)}</h2><table>{''.join(shown)}</table>"
