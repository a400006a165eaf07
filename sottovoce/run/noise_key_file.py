"""The noise key of a run: named in its settings, or made for it and kept in its folder, for nobody but its owner.

It never leaves the machine: ranks read it from the folder that they share.
"""

from __future__ import annotations

import json

from sottovoce.config import Experiment
from sottovoce.core.files import write_text
from sottovoce.core.noise_key import NoiseKey
from sottovoce.core.random_streams import RandomSource
from sottovoce.core.secret_source import SecretSource
from sottovoce.errors import InputError
from sottovoce.run.layout import RunFiles

WARNING = "private: whoever has this key can take the noise away from the run's messages"


def named_source(experiment: Experiment) -> RandomSource | None:
    """The source that the settings name: secret, or a key, for the run's seed; None where each run makes a key."""
    if experiment.noise == "secret":
        return SecretSource()
    return None if experiment.noise_key is None else _run_key(experiment.noise_key, experiment)


def write_noise_key(files: RunFiles, experiment: Experiment, fingerprint: str) -> None:
    """Make the key of a run that begins, unless its settings name one, or secret noise."""
    if experiment.noise_key is not None or experiment.noise == "secret" or files.noise_key.exists():
        return
    if any(path.exists() for path in (files.privacy, files.private, files.checkpoint)):
        raise InputError(
            f"{files.noise_key}: not there", "the run has begun, and goes on with the noise that it began with",
            "restore the file, or start anew with another --out",
        )  # fmt: skip
    key = NoiseKey.fresh()
    document = {"about": WARNING, "noise_key": key.hexadecimal, "check": key.check, "run": fingerprint}
    write_text(files.noise_key, json.dumps(document, indent=1) + "\n", private=True)


def read_noise_key(files: RunFiles, experiment: Experiment, fingerprint: str) -> RandomSource:
    """The source of a run's noise: that of its settings, or the key in its folder, which must be this run's own."""
    named = named_source(experiment)
    if named is not None:
        return named
    found = files.document(files.noise_key) or {}
    if found.get("run") != fingerprint or not isinstance(found.get("noise_key"), str):
        raise InputError(
            f"{files.noise_key}: not the key of this run", "noise is drawn once, from one key",
            "restore the file, or start anew with another --out",
        )  # fmt: skip
    if NoiseKey.parse(found["noise_key"]).check != found.get("check"):
        raise InputError(
            f"{files.noise_key}: damaged", "noise is drawn once, from one key",
            "restore the file, or start anew with another --out",
        )  # fmt: skip
    return _run_key(found["noise_key"], experiment)


def _run_key(text: str, experiment: Experiment) -> NoiseKey:
    """Settings that name the key of an earlier run repeat that run."""
    return NoiseKey.parse(text).for_run(experiment.name, experiment.seed)
