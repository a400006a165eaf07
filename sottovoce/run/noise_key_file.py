"""The noise key of a run: named in its settings, or made for it; kept in its folder, for nobody but its owner.

It never leaves the machine: ranks read it from the folder that they share, and `config.json` says only that there is
one.
"""

from __future__ import annotations

from pathlib import Path

from sottovoce.core.noise_key import NoiseKey
from sottovoce.core.random_streams import RandomSource
from sottovoce.core.secret_source import SecretSource
from sottovoce.errors import InputError
from sottovoce.run.layout import NOISE_KEY, RunFiles
from sottovoce.support.config import Document, Experiment

WARNING = "private: whoever has this key can remove the noise from the run's messages"

IN_FILE = NOISE_KEY.name
"""What `config.json` has in place of a key that the settings name: the file beside it that holds the key."""


def public_settings(experiment: Experiment) -> Document:
    """All settings as they may be handed on: of a key that they name, only that it is named."""
    return experiment.document() | {"noise_key": None if experiment.noise_key is None else IN_FILE}


def with_key_from_file(settings: Document, folder: Path) -> Document:
    """Settings of a `config.json` in a folder, with the noise key that lies beside it if they say so."""
    if settings.get("noise_key") != IN_FILE:
        return settings
    files = RunFiles(folder)
    stored = files.document(files.noise_key)
    if stored is None:
        raise InputError(
            f"{files.noise_key}: not there", "the settings take their noise key from it",
            """restore it, or add --set "noise_key='...'" with the 32 digits of a key""",
        )  # fmt: skip
    return settings | {"noise_key": stored["noise_key"]}


def named_source(experiment: Experiment) -> RandomSource | None:
    """The source that the settings name: secret, or a key, for the run's seed; None where each run makes a key."""
    if experiment.noise == "secret":
        return SecretSource()
    return None if experiment.noise_key is None else _run_key(experiment.noise_key, experiment)


def write_noise_key(files: RunFiles, experiment: Experiment, fingerprint: str) -> None:
    """Keep the key of a run that begins: the one that its settings name, or a fresh one; secret noise has none."""
    if experiment.noise == "secret" or files.noise_key.exists():
        return
    if any(path.exists() for path in (files.privacy, files.private, files.checkpoint)):
        raise InputError(
            f"{files.noise_key}: not there", "the run has begun, and goes on with the noise that it began with",
            "restore the file, or start a new run with another --out",
        )  # fmt: skip
    key = NoiseKey.fresh() if experiment.noise_key is None else NoiseKey.parse(experiment.noise_key)
    document = {"about": WARNING, "noise_key": key.hexadecimal, "check": key.check, "run": fingerprint}
    files.write_document(files.noise_key, document)


def read_noise_key(files: RunFiles, experiment: Experiment, fingerprint: str) -> RandomSource:
    """The source of a run's noise: secret, or the key in its folder.

    The key must be this run's own, and the one that the settings name if they do.
    """
    if experiment.noise == "secret":
        return SecretSource()
    found = files.document(files.noise_key) or {}
    if found.get("run") != fingerprint:
        raise _wrong_key(files, "not the key of this run")
    key = NoiseKey.parse(found["noise_key"])
    if key.check != found["check"]:
        raise _wrong_key(files, "damaged")
    if experiment.noise_key not in (None, IN_FILE) and NoiseKey.parse(str(experiment.noise_key)) != key:
        raise InputError(
            f"{files.folder} holds a run with another noise_key", "a folder holds one run",
            "use another --out, or remove it",
        )  # fmt: skip
    return _run_key(key.hexadecimal, experiment)


def planned_source(files: RunFiles, experiment: Experiment, fingerprint: str) -> RandomSource:
    """The source that a run will have: one that was killed before its first round has a key in its folder already."""
    if files.noise_key.exists():
        return read_noise_key(files, experiment, fingerprint)
    return named_source(experiment) or NoiseKey.fresh()


def noise_check(files: RunFiles, experiment: Experiment) -> str | None:
    """What two runs with the same noise have in common; None where the folder holds no key."""
    found = None if experiment.noise == "secret" else files.document(files.noise_key)
    return None if found is None else _run_key(found["noise_key"], experiment).check


def _wrong_key(files: RunFiles, what: str) -> InputError:
    return InputError(
        f"{files.noise_key}: {what}", "noise is drawn once, from one key",
        "restore the file, or start a new run with another --out",
    )  # fmt: skip


def _run_key(text: str, experiment: Experiment) -> NoiseKey:
    """Settings that name the key of an earlier run repeat that run."""
    return NoiseKey.parse(text).for_run(experiment.name, experiment.seed)
