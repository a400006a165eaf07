"""`private.json` of a run: what depends on the data itself.

No privacy figure covers it, so it is kept out of all that may be handed on: pages, logs and comparisons never read it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sottovoce.run.layout import RunFiles

WARNING = "Do not hand this file on: it depends on the data itself, and no privacy figure covers it."


@dataclass(frozen=True)
class PrivateFacts:
    """The fingerprint of the run with its data, and how many gradients were left out because they were not finite.

    The count is None until the run ends. `in_ledger` says whether the run is entered in a ledger.
    """

    fingerprint: str
    nonfinite: int | None = None
    in_ledger: bool = False


def write_private_facts(files: RunFiles, facts: PrivateFacts) -> None:
    """Write `private.json`, for its owner alone."""
    files.write_document(files.private, {"private": WARNING, **asdict(facts)})


def read_private_facts(files: RunFiles) -> PrivateFacts | None:
    """What `private.json` holds; None where it is not there."""
    document = files.document(files.private)
    if document is None:
        return None
    return PrivateFacts(document["fingerprint"], document["nonfinite"], document["in_ledger"])
