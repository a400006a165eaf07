"""How results show themselves in a notebook: a small table, in the notebook's own style.

>>> html_table([["kind", "epsilon"], ["any-training", "< 2"]], "node:0")
'<table><caption>node:0</caption><thead><tr><th>kind</th>...<td>&lt; 2</td></tr></tbody></table>'
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

DELTA = 1e-5
"""At which epsilon is shown where nothing says another delta."""

MOST_ROWS = 30


def html_table(rows: Sequence[Sequence[object]], caption: str = "") -> str:
    """Rows as a table, the first of them the heading; of many, the first ones and how many are left out."""
    heading, *rest = rows
    head = "".join(f"<th>{escape(str(cell))}</th>" for cell in heading)
    shown = ["".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in rest[:MOST_ROWS]]
    if len(rest) > MOST_ROWS:
        shown.append(f'<td colspan="{len(heading)}">and {len(rest) - MOST_ROWS} more</td>')
    body = "".join(f"<tr>{row}</tr>" for row in shown)
    named = f"<caption>{escape(caption)}</caption>" if caption else ""
    top = f"<thead><tr>{head}</tr></thead>" if any(heading) else ""
    return f"<table>{named}{top}<tbody>{body}</tbody></table>"
