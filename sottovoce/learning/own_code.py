"""Models and data sets of the user's own, from code that settings name.

A model is a class of torch modules, made with the settings beside its name, or a function of the data set and of these
settings that gives a module or a `Model`. A data set is a function that gives a `Dataset`; it is called with the folder
of data sets if it takes an argument.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from torch import nn

from sottovoce.errors import InputError, SottovoceError, shortened
from sottovoce.learning.catalogue import CATALOGUE
from sottovoce.learning.datasets import Dataset, folder_of, load
from sottovoce.learning.models import BUILDERS, Model, model, with_torch_seed, wrap_module
from sottovoce.learning.table_data import OF_ITS_OWN
from sottovoce.support.own_code import Offered, code_digest, named_object


def find_model(name: str, dataset: Dataset, **settings: object) -> Model:
    """The model of that name, of the package or of the user's own, for a data set.

    Of the settings of a model of one's own, `loss` and `shape` go to `wrap_module`. The loss follows from the data
    unless given.
    """
    found = None if name in BUILDERS else named_object(name, Offered.MODEL)
    if found is None:
        return model(name, dataset, **settings)
    if not callable(found.value):
        raise InputError(
            f"model {name!r} is a {type(found.value).__name__}",
            "it must be a class of torch modules, or a function of the data set", "see docs/your-own-model.md",
        )  # fmt: skip
    is_module = isinstance(found.value, type) and issubclass(found.value, nn.Module)
    given = {key: value for key, value in settings.items() if not is_module or key not in ("loss", "shape")}
    make, arguments = found.value, () if is_module else (dataset,)
    made = with_torch_seed(lambda: _called(make, name, arguments, given))
    if isinstance(made, Model):
        return made
    if not isinstance(made, nn.Module):
        raise InputError(
            f"model {name!r} returns a {type(made).__name__}",
            "it must return a torch module or a Model",
            "correct its return",
        )
    wrapping = settings if is_module else {}
    loss = wrapping.get("loss", "squared" if dataset.kind in ("value", "ratings") else "cross-entropy")
    return wrap_module(made, str(loss), shape=_shape(name, wrapping), name=name)


def find_dataset(name: str, folder: Path | None) -> Dataset:
    """The data set of that name, of the package or of the user's own."""
    found = None if _comes_with_package(name) else named_object(name, Offered.DATASET)
    if found is None:
        return load(name, folder)
    if not callable(found.value):
        raise InputError(
            f"data set {name!r} is a {type(found.value).__name__}", "it must be a function that returns a Dataset",
            "write def load(): return from_arrays(...)",
        )  # fmt: skip
    declared = inspect.signature(found.value).parameters.values()
    takes_folder = any(one.default is inspect.Parameter.empty for one in declared)
    made = _called(found.value, name, (folder_of(folder),) if takes_folder else (), {})
    if not isinstance(made, Dataset):
        raise InputError(
            f"data set {name!r} returns a {type(made).__name__}", "it must return a Dataset", "return from_arrays(...)"
        )
    bound = made.examples.norm_bound
    return made if bound is None else replace(made, examples=made.examples.clipped(bound))


def model_code(name: str) -> str | None:
    """A digest of the code of a model of the user's own; None for one of the package."""
    return None if name in BUILDERS else code_digest(name, Offered.MODEL)


def dataset_code(name: str) -> str | None:
    """A digest of the code that reads a data set of the user's own; None where no code of theirs does."""
    return None if _comes_with_package(name) else code_digest(name, Offered.DATASET)


def _comes_with_package(name: str) -> bool:
    """Whether a reader of the package reads it, as it does tables and arrays of the user's own."""
    return name in CATALOGUE or name == OF_ITS_OWN or name.startswith(("file:", "table:"))


def _called(make: Callable[..., Any], name: str, arguments: tuple[object, ...], given: Mapping[str, object]) -> object:
    """What a function of the user's gives; settings that it does not take are refused, and what it raises is named."""
    try:
        inspect.signature(make).bind(*arguments, **given)
    except TypeError as error:
        raise InputError(
            f"{name} with {shortened(str(dict(given)))}", f"it cannot be called with these settings: {error}",
            "correct the settings beside its name",
        ) from None  # fmt: skip
    try:
        return make(*arguments, **given)
    except SottovoceError:
        raise
    except Exception as error:
        raise InputError(
            f"{name}: {type(error).__name__}: {shortened(str(error))}", "your own code raised this error",
            "correct it, or the settings beside its name",
        ) from error  # fmt: skip


def _shape(name: str, settings: Mapping[str, object]) -> tuple[int, ...] | None:
    shape = settings.get("shape")
    if shape is None:
        return None
    if not isinstance(shape, list | tuple) or not all(type(one) is int and one > 0 for one in shape):
        raise InputError(f"shape = {shape!r:.40} of {name}", "it must be a list of whole numbers", "write [1, 8, 8]")
    return cast("tuple[int, ...]", tuple(shape))
