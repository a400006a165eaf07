"""What docs/run.md says of the files in a run's folder is what the code goes by."""

from __future__ import annotations

import re
from pathlib import Path

from sottovoce.run.layout import FILES

PAGE = Path(__file__).parents[2] / "docs" / "run.md"


def test_the_page_says_of_every_file_who_may_see_it():
    rows = re.findall(r"^\| `([\w.]+)` \| (public|results|private) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [(kind.name, kind.audience.value) for kind in FILES]
