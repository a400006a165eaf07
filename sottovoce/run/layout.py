"""The files in the folder of a run, and how they are read; `sottovoce.run.execute` says what each one is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sottovoce.config import Document
from sottovoce.errors import InputError
from sottovoce.text import parse_json, read_text


@dataclass(frozen=True)
class RunFiles:
    """The paths of a run's files."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "config.json"

    @property
    def privacy(self) -> Path:
        return self.folder / "privacy.json"

    @property
    def noise_key(self) -> Path:
        return self.folder / "noise.key"

    @property
    def private(self) -> Path:
        return self.folder / "private.json"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.npz"

    @property
    def result(self) -> Path:
        return self.folder / "result.json"

    @property
    def attack(self) -> Path:
        return self.folder / "attack.json"

    @property
    def audit(self) -> Path:
        return self.folder / "audit.json"

    @property
    def page(self) -> Path:
        return self.folder / "report.html"

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    def document(self, path: Path) -> Document | None:
        """A JSON file of the run, or None where it is not there."""
        if not path.exists():
            return None
        text = _text(path)
        try:
            found = parse_json(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise _damaged(path)
        return found

    def lines(self) -> list[Document]:
        """The lines of `metrics.jsonl`, one for each time that the models were measured."""
        text = _text(self.metrics)
        try:
            return [parse_json(line) for line in text.splitlines()]
        except ValueError:
            raise _damaged(self.metrics) from None


def _text(path: Path) -> str:
    return read_text(path, "it is written by sotto run", "restore the file, or run again in another folder")


def _damaged(path: Path) -> InputError:
    return InputError(f"{path}: damaged", "it is written by sotto run", "remove the run's folder")
