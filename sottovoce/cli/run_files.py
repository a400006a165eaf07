"""Files that commands take runs from, settings or an agreement of members; and where code lies that they name."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sottovoce.support.config import Document


def code_beside(file: Path) -> Path | None:
    """Where code is that a run file names: beside it. Settings that others wrote load none by themselves.

    Those are the settings in a run's folder, and agreements.
    """
    from sottovoce.run.layout import RunFiles

    written_by_run = file.suffix == ".json" or RunFiles(file.parent).config.exists()
    return None if written_by_run or not file.is_file() or is_agreement(settings_document(file)) else file.parent


def settings_document(file: Path) -> "Document":
    """What a file says, not checked yet."""
    from sottovoce.support.config import read_settings_file

    return read_settings_file(file)


def is_agreement(document: "Document") -> bool:
    """Whether a document is an agreement of members, and no settings of a run."""
    return "members" in document
