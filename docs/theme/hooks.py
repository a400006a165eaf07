"""How pages and docstrings become HTML: doctests are shown as sessions, whose prompts and answers are not copied.

And pages that sweeps have written come into the menu by themselves.

>>> on_page_markdown("```python\\n>>> 1 + 1\\n2\\n\\n```")
'```pycon\\n>>> 1 + 1\\n2\\n```'
>>> fenced("One line.\\n\\n    >>> 1 + 1\\n    2\\n\\nMore.")
'One line.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```\\n\\nMore.'
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

SESSION = re.compile(r"```python\n(?=>>>)(.*?)\n+```", flags=re.DOTALL)
EXAMPLE = re.compile(r"(?:(?<=\n\n)|\A)( *>>> .*?)(?=\n\n|\Z)", flags=re.DOTALL)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Examples of pages, which are doctests, as sessions."""
    return SESSION.sub(r"```pycon\n\1\n```", markdown)


def fenced(docstring: str) -> str:
    """The same for a docstring, where examples stand without a fence."""
    return EXAMPLE.sub(lambda found: f"```pycon\n{textwrap.dedent(found[1])}\n```", docstring)


def entries(menu: list[Any], *names: str) -> list[Any]:
    """The part of the menu under these names.

    >>> entries([{"a": "a.md"}, {"b": [{"c": ["d.md"]}]}], "b", "c")
    ['d.md']
    """
    for name in names:
        menu = next(entry[name] for entry in menu if isinstance(entry, dict) and name in entry)
    return menu


def on_config(config: Any) -> None:
    """Docstrings pass through the same Markdown as pages; they are told by having no fence of their own."""
    entries(config.nav, "Explanation", "Results").extend(
        f"results/{page.name}"
        for page in sorted(Path(config.docs_dir, "results").glob("*.md"))
        if page.stem != "README"
    )
    from markdown import Extension, Markdown
    from markdown.preprocessors import Preprocessor

    class Sessions(Preprocessor):
        def run(self, lines: list[str]) -> list[str]:
            text = "\n".join(lines)
            return lines if "```" in text else fenced(text).split("\n")

    class Docstrings(Extension):
        def extendMarkdown(self, md: Markdown) -> None:
            md.preprocessors.register(Sessions(md), "docstrings", 100)

    config.markdown_extensions.append(Docstrings())
