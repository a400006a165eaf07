"""Models as functions of one flat row of parameters, so that all nodes are one N x D tensor.

    >>> net = mlp((8, 64, 1), loss="logistic")
    >>> net
    Model('mlp', 641 parameters, logistic)
    >>> x0 = net.start(nodes=5, generator=torch.Generator().manual_seed(0))
    >>> x0.shape, bool((x0[0] == x0[4]).all())
    (torch.Size([5, 641]), True)
    >>> net.layout.views(x0)["2.weight"].shape
    torch.Size([5, 1, 64])

Any torch module whose examples do not influence each other can be used: see `wrap_module`.

Shapes: N nodes, B examples, F inputs, D parameters.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TypeGuard, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from sottovoce.errors import InputError
from sottovoce.learning.datasets import Dataset, call_own_code
from sottovoce.learning.features import Features, parse_features
from sottovoce.learning.lazy_rows import Examples
from sottovoce.learning.losses import LOSSES, Loss
from sottovoce.learning.modules import call_alone, generators_kept
from sottovoce.learning.starts import SETTINGS as SETTINGS_OF_STARTS
from sottovoce.learning.starts import adapt
from sottovoce.support.own_code import Offered, code_digest, named_object

Made = TypeVar("Made")


@dataclass(frozen=True)
class Layout:
    """Where each parameter lies in a flat row: names, shapes and offsets."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers in each parameter."""
        return tuple(math.prod(shape) for shape in self.shapes)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where each parameter begins; the last entry is the length of a row."""
        return tuple(accumulate(self.sizes, initial=0))

    @property
    def size(self) -> int:
        """Length of a row."""
        return self.offsets[-1]

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """Each parameter of one row, or of all rows with nodes first, without a copy."""
        if rows.shape[-1] != self.size:
            raise InputError(
                f"rows of {rows.shape[-1]} numbers", f"the model has {self.size} parameters", "use the model's start"
            )
        lead, parts = rows.shape[:-1], zip(self.names, self.shapes, self.offsets, self.offsets[1:], strict=False)
        return {name: rows[..., start:stop].view(*lead, *shape) for name, shape, start, stop in parts}

    def flatten(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Parameters as one row, or as rows where they have a leading dimension more."""
        return torch.cat(
            [parts[name].flatten(parts[name].dim() - len(shape)) if shape else parts[name].unsqueeze(-1)
             for name, shape in zip(self.names, self.shapes, strict=True)], dim=-1,
        )  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A module used functionally, with its loss. `shape` is what one flat input becomes before it enters.

    Trained parameters that are `given` begin as they are in the module; others as their layers begin. With `features`
    its inputs are not rows, but features of rows.
    """

    name: str
    module: nn.Module
    layout: Layout
    loss: Loss
    shape: tuple[int, ...] | None = None
    given: frozenset[str] = frozenset()
    features: Features | None = None

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {self.layout.size} parameters, {self.loss.name})"

    def inputs(self, examples: Examples) -> Examples:
        """What the model takes of rows."""
        return examples if self.features is None else self.features.of(examples)

    def outputs(self, row_D: Tensor, inputs_BF: Tensor) -> Tensor:
        """Outputs of one node's model, B x K."""
        return self.outputs_of(self.layout.views(row_D), inputs_BF)

    def outputs_of(self, parameters: dict[str, Tensor], inputs_BF: Tensor) -> Tensor:
        """The same from parameters by name."""
        shaped = inputs_BF if self.shape is None else inputs_BF.view(-1, *self.shape)
        found = call_alone(self.module, {**self._frozen(inputs_BF), **parameters}, shaped)
        return found.unsqueeze(-1) if found.dim() == 1 else found

    def _frozen(self, like: Tensor) -> dict[str, Tensor]:
        """Parameters that are not trained, in the precision and on the device of inputs."""
        held = self.module.named_parameters()
        return {name: value.detach().to(like) for name, value in held if name not in self.layout.names}

    def start(
        self,
        nodes: int | Sequence[int],
        generator: torch.Generator,
        *,
        same: bool = True,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """A starting point, N x D: one for all nodes, or each node its own. Layers begin as torch begins them.

        `nodes` says how many there are, or for which numbers alone rows are made. A parameter that its module does
        not know how to reset keeps the value it came with.
        """
        which = range(nodes) if isinstance(nodes, int) else [int(node) for node in nodes]
        count = 1 if same else max(which, default=0) + 1
        seeds = [int(torch.randint(2**63 - 1, (), generator=generator)) for _ in range(count)]
        rows = torch.stack([self._fresh(seeds[node]) for node in ([0] if same else which)]).to(dtype)
        return rows.expand(len(which), -1).clone()

    def _fresh(self, seed: int) -> Tensor:
        fresh = copy.deepcopy(self.module).cpu()  # whose random numbers are the same everywhere

        def reset() -> None:
            for part in fresh.modules():
                if callable(again := getattr(part, "reset_parameters", None)):
                    again()

        with_torch_seed(reset, seed)
        values = dict(fresh.named_parameters()) | {name: self.module.get_parameter(name) for name in self.given}
        return self.layout.flatten({name: value.detach().cpu() for name, value in values.items()})


def with_torch_seed(make: Callable[[], Made], seed: int = 0) -> Made:
    """What `make` gives when torch's own generator starts from `seed`; random generators are left as they were.

    torch's layers draw from that generator and take no other.
    """
    with generators_kept():
        torch.default_generator.manual_seed(seed)
        return make()


# --- any module ----------------------------------------------------------------------------------------------------

MIXING = (nn.modules.batchnorm._BatchNorm,)
"""Layers whose outputs for one example depend on the others: clipping per example would mean nothing."""


def wrap_module(
    module: nn.Module,
    loss: str,
    *,
    shape: tuple[int, ...] | None = None,
    name: str | None = None,
    given: Collection[str] = (),
) -> Model:
    """Wrap a torch module of yours as a model. It is copied, and its parameters that need gradients are trained.

    Parameters that are `given` by name begin as they are here: public weights. `loss` is cross-entropy, hazards (an
    output for each period), logistic or squared (one output). `shape` is the shape of one example if the module does
    not take flat rows.
    """
    if loss not in LOSSES:
        _refuse_coupled(str(loss))
        raise InputError(f"loss {loss!r}", f"known: {', '.join(LOSSES)}", "choose one of them")
    module = copy.deepcopy(module)
    for path, part in module.named_modules():
        _check_layer(path, part)
        if isinstance(part, nn.modules.instancenorm._InstanceNorm):  # each example by its own figures, none kept
            part.track_running_stats, part.running_mean, part.running_var = False, None, None
    trained = {key: tuple(value.shape) for key, value in module.named_parameters() if value.requires_grad}
    if not trained:
        raise InputError(
            f"{type(module).__name__} without trainable parameters", "there is nothing to learn", "add some"
        )
    return Model(
        name or type(module).__name__, module, Layout(tuple(trained), tuple(trained.values())), LOSSES[loss], shape,
        frozenset(given),
    )  # fmt: skip


COUPLED = ("cox", "cox-ph", "partial-likelihood")


def _refuse_coupled(name: str) -> None:
    if name.lower() in COUPLED:
        raise InputError(
            f"{name}: a partial likelihood",
            "it compares each record with all that are still at risk, so clipping per record bounds nothing",
            'learn hazards in periods: model.name = "hazards"; see docs/your-own-data.md',
        )  # fmt: skip


def _check_layer(path: str, part: nn.Module) -> None:
    where = f"{type(part).__name__} at {path or 'the top'}"
    if isinstance(part, MIXING):
        raise InputError(
            where, "batch norm mixes examples, so one record moves the gradients of others", "use nn.GroupNorm instead"
        )
    if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0:
        raise InputError(where, "it draws from torch's global generator, so no run could be repeated", "remove it")


# --- the networks of the papers' experiments: none of them mixes examples ------------------------------------------

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}


def chain(widths: Sequence[int], activation: str = "relu", bias: bool = True) -> nn.Sequential:
    """Linear layers of these widths with the activation between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after, bias=bias), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])


class StandardConv2d(nn.Conv2d):
    """A convolution whose weights have mean 0 and variance 1 over each output channel (weight standardisation)."""

    def forward(self, images: Tensor) -> Tensor:
        """With weights standardised, over the root of their number."""
        spread, mean = torch.var_mean(self.weight, dim=(1, 2, 3), correction=0, keepdim=True)
        scale = (spread * self.weight[0].numel() + 1e-4).rsqrt()
        return self._conv_forward(images, (self.weight - mean) * scale, self.bias)


def small_cnn(
    shape: tuple[int, ...],
    outputs: int,
    filters: Sequence[int] = (16, 32),
    groups: int = 8,
    standardise: bool = False,
) -> nn.Sequential:
    """MAFALDA's FEMNIST net: 3 x 3 convolutions with ReLU and 2 x 2 max-pooling, group norm, one linear layer.

    The paper is silent on padding and groups: here sides are padded by one, and channels are in 8 groups.
    """
    channels, height, width = shape
    layers: list[nn.Module] = []
    convolution = StandardConv2d if standardise else nn.Conv2d
    for before, after in pairwise((channels, *filters)):
        layers += [convolution(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        height, width = height // 2, width // 2
    last = filters[-1]
    return nn.Sequential(*layers, nn.GroupNorm(groups, last), nn.Flatten(), nn.Linear(last * height * width, outputs))


class Block(nn.Module):
    """Two 3 x 3 convolutions with group norm and a way around them."""

    def __init__(self, before: int, after: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, after)
        self.around: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.around = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.GroupNorm(groups, after))

    def forward(self, images: Tensor) -> Tensor:
        """Same shape but for channels and stride."""
        inner = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(images)))))
        return functional.relu(inner + self.around(images))


def resnet18(shape: tuple[int, ...], outputs: int, width: int = 64, groups: int = 32) -> nn.Sequential:
    """ResNet-18 for small images: 3 x 3 stem without pooling, group norm in place of batch norm."""
    stem = [nn.Conv2d(shape[0], width, 3, padding=1, bias=False), nn.GroupNorm(groups, width), nn.ReLU()]
    blocks: list[nn.Module] = []
    before = width
    for stage in range(4):
        after = width * 2**stage
        blocks += [Block(before, after, 1 if stage == 0 else 2, groups), Block(after, after, 1, groups)]
        before = after
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs))


class Mean(nn.Module):
    """The same number for all rows: learned by squared error it is the mean of their targets."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(1))

    def reset_parameters(self) -> None:
        """Zero, from which one step of size 1 leads to the mean."""
        nn.init.zeros_(self.mean)

    def forward(self, rows: Tensor) -> Tensor:
        """The number, for each row."""
        return self.mean.expand(len(rows), 1)


class Factors(nn.Module):
    """A rating as `offset + user bias + item bias + <user factors, item factors>`, from a pair of positions."""

    def __init__(self, users: int, items: int, rank: int, offset: float) -> None:
        super().__init__()
        self.offset = offset
        self.users, self.items = nn.Parameter(torch.empty(users, rank)), nn.Parameter(torch.empty(items, rank))
        self.user_bias, self.item_bias = nn.Parameter(torch.empty(users)), nn.Parameter(torch.empty(items))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Small random factors, no biases."""
        for factors in (self.users, self.items):
            nn.init.normal_(factors, std=0.1 / math.sqrt(factors.shape[1]))
        for bias in (self.user_bias, self.item_bias):
            nn.init.zeros_(bias)

    def forward(self, pairs: Tensor) -> Tensor:
        """Ratings, ... x 1, of pairs, ... x 2."""
        user, item = pairs.long().unbind(-1)
        inner = (self.users[user] * self.items[item]).sum(-1)
        return (self.offset + self.user_bias[user] + self.item_bias[item] + inner).unsqueeze(-1)


# --- the named ones ------------------------------------------------------------------------------------------------


def linear(features: int, outputs: int = 1, *, loss: str = "squared", bias: bool = True) -> Model:
    """One linear layer: least squares, or with another loss logistic or softmax regression."""
    return _named("linear", lambda: chain((features, outputs), bias=bias), loss)


def logistic(features: int, *, bias: bool = True) -> Model:
    """Logistic regression for two classes, one output."""
    return _named("logistic", lambda: chain((features, 1), bias=bias), "logistic")


def softmax(features: int, classes: int, *, bias: bool = True) -> Model:
    """Softmax regression."""
    return _named("softmax", lambda: chain((features, classes), bias=bias), "cross-entropy")


def hazards(features: int, periods: int, *, bias: bool = True) -> Model:
    """The time to an event: a logistic regression for each period, of those who have come so far."""
    return _named("hazards", lambda: chain((features, periods), bias=bias), "hazards")


def mlp(widths: Sequence[int], *, loss: str = "cross-entropy", activation: str = "relu") -> Model:
    """Linear layers of any widths: `mlp((784, 32, 10))`, `mlp((8, 64, 1), loss="logistic")`."""
    if len(widths) < 2 or min(widths) < 1:
        raise InputError(
            f"widths {tuple(widths)}",
            "they are the numbers of inputs, hidden units and outputs, each 1 or more",
            "write 784, 32, 10",
        )
    if activation not in ACTIVATIONS:
        raise InputError(f"activation {activation!r}", f"known: {', '.join(ACTIVATIONS)}", "choose one of them")
    return _named("mlp", lambda: chain(widths, activation), loss)


def cnn(
    shape: tuple[int, ...],
    classes: int,
    *,
    filters: Sequence[int] = (16, 32),
    groups: int = 8,
    standardise: bool = False,
) -> Model:
    """The small convolutional net of MAFALDA's FEMNIST experiment."""
    _check_images("cnn", shape, filters[-1:], groups)
    return _named("cnn", lambda: small_cnn(shape, classes, filters, groups, standardise), "cross-entropy", shape)


def gn_resnet18(shape: tuple[int, ...], classes: int, *, width: int = 64, groups: int = 32) -> Model:
    """ResNet-18 with group norm, for images of CIFAR-10's size; `width` is the number of channels after the stem."""
    _check_images("gn-resnet18", shape, (width,), groups)
    return _named("gn-resnet18", lambda: resnet18(shape, classes, width, groups), "cross-entropy", shape)


def matrix_factorisation(users: int, items: int, *, rank: int = 16, offset: float = 3.0) -> Model:
    """Ratings from factors and biases of users and items. `offset` is a public guess of the mean, not learned."""
    if min(users, items, rank) < 1:
        raise InputError(f"{users} users, {items} items, rank {rank}", "each is 1 or more", "check the data")
    return _named("matrix-factorisation", lambda: Factors(users, items, rank, offset), "squared")


def _named(name: str, make: Callable[[], nn.Module], loss: str, shape: tuple[int, ...] | None = None) -> Model:
    return wrap_module(with_torch_seed(make), loss, shape=shape, name=name)


def _check_images(name: str, shape: tuple[int, ...], channels: Sequence[int], groups: int) -> None:
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise InputError(f"{name} for inputs of shape {shape}", "it takes images, channels x height x width", "use mlp")
    if groups < 1 or any(count % groups for count in channels):
        raise InputError(f"{groups} groups of {channels[0]} channels", "groups must be equally large", "use a divisor")


def model(name: str, dataset: Dataset, /, **settings: object) -> Model:
    """The model of that name for a data set, which decides the numbers of inputs and outputs.

    Two classes need one output with `linear`, `logistic` and `mlp`; values and ratings are learned by squared error.
    `mlp` takes `hidden`, the widths between inputs and outputs. `features` names a map of rows: see
    `learning.features`.
    """
    _refuse_coupled(name)
    if name not in BUILDERS:
        raise InputError(f"model {name!r}", f"known: {', '.join(BUILDERS)}", "see docs/models.md")
    if "features" in settings:
        return _on_features(model, name, dataset, settings)
    kinds, build = BUILDERS[name]
    kind = "two classes" if len(dataset.classes) == 2 else dataset.kind
    if kind not in kinds:
        raise InputError(
            f"{name} on {dataset.name}, which has {kind}", f"it is for {' or '.join(kinds)}", "use another model"
        )
    for key, value in settings.items():
        fits, wanted = SETTINGS.get(key, (lambda _: True, ""))
        if not fits(value):
            raise InputError(f"{key} = {value!r:.60} of {name}", f"it must be {wanted}", "correct it")
    try:
        return build(dataset, **settings)
    except TypeError as error:
        unfit = next((key for key in settings if f"argument '{key}'" in str(error)), None)
        if unfit is None:
            raise
        given = "the data set decides that" if "multiple values" in str(error) else "it has no such setting"
        raise InputError(f"{unfit!r:.60} of {name}", given, "see docs/models.md") from None


def _on_features(build: Callable[..., Model], name: str, dataset: Dataset, settings: dict[str, object]) -> Model:
    found = parse_features(settings.pop("features"), dataset)
    return replace(build(name, found.described(dataset), **settings), features=found)


def _learned(dataset: Dataset) -> tuple[int, str]:
    """How many outputs, and which loss, suit what a data set is to give."""
    several = len(dataset.periods) or (len(dataset.classes) > 2 and len(dataset.classes))
    loss = {"value": "squared", "times": "hazards"}.get(dataset.kind, "cross-entropy" if several else "logistic")
    return several or 1, loss


def _mlp_for(dataset: Dataset, hidden: Sequence[int] = (64,), **settings: str) -> Model:
    outputs, loss = _learned(dataset)
    return mlp((dataset.examples.width, *hidden, outputs), loss=loss, **settings)


def _linear_for(dataset: Dataset, *, bias: bool = True) -> Model:
    outputs, loss = _learned(dataset)
    return linear(dataset.examples.width, outputs, loss=loss, bias=bias)


ANY_CLASSES = ("classes", "two classes")
BUILDERS: dict[str, tuple[tuple[str, ...], Callable[..., Model]]] = {
    "mean": (("value", "ratings", "two classes"), lambda data: wrap_module(Mean(), "squared", name="mean")),
    "linear": ((*ANY_CLASSES, "value"), _linear_for),
    "logistic": (("two classes",), lambda data, **settings: logistic(data.examples.width, **settings)),
    "softmax": (ANY_CLASSES, lambda data, **settings: softmax(data.examples.width, len(data.classes), **settings)),
    "hazards": (("times",), lambda data, **settings: hazards(data.examples.width, len(data.periods), **settings)),
    "mlp": ((*ANY_CLASSES, "value", "times"), _mlp_for),
    "cnn": (ANY_CLASSES, lambda data, **settings: cnn(data.shape, len(data.classes), **settings)),
    "gn-resnet18": (ANY_CLASSES, lambda data, **settings: gn_resnet18(data.shape, len(data.classes), **settings)),
    "matrix-factorisation": (("ratings",), lambda data, **settings: matrix_factorisation(*data.entities, **settings)),
}
"""For each name: what it can learn, and how it is built for a data set."""


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _wholes(value: object) -> TypeGuard[Sequence[int]]:
    return isinstance(value, list | tuple) and all(_whole(part) for part in value)


SETTINGS: dict[str, tuple[Callable[[object], bool], str]] = {
    "bias": (lambda value: isinstance(value, bool), "true or false"),
    "standardise": (lambda value: isinstance(value, bool), "true or false"),
    "hidden": (_wholes, "a list of whole numbers"),
    "filters": (lambda value: _wholes(value) and len(value) > 0, "a list of whole numbers"),
    "width": (_whole, "a whole number"),
    "groups": (_whole, "a whole number"),
    "rank": (_whole, "a whole number"),
    "offset": (lambda value: isinstance(value, int | float), "a number"),
}
"""What the settings of models are; which model has which is known to its function."""


# --- by the user's own code ----------------------------------------------------------------------------------------


def find_model(name: str, dataset: Dataset, **settings: object) -> Model:
    """The model of that name, of the package or of the user's own, for a data set.

    Of the settings of a model of one's own, `loss` and `shape` go to `wrap_module`. The loss follows from the data
    unless given. Any model may begin from public weights, and be trained in part: `learning.starts`.
    """
    if "features" in settings:
        return _on_features(find_model, name, dataset, settings)
    starting = {key: settings.pop(key) for key in SETTINGS_OF_STARTS if key in settings}
    found = None if name in BUILDERS else named_object(name, Offered.MODEL)
    if found is None:
        return _adapted(model(name, dataset, **settings), starting)
    if not callable(found.value):
        raise InputError(
            f"model {name!r} is a {type(found.value).__name__}",
            "it must be a class of torch modules, or a function of the data set", "see docs/your-own-model.md",
        )  # fmt: skip
    is_module = isinstance(found.value, type) and issubclass(found.value, nn.Module)
    given = {key: value for key, value in settings.items() if not is_module or key not in ("loss", "shape")}
    make, arguments = found.value, () if is_module else (dataset,)
    made = with_torch_seed(lambda: call_own_code(make, name, arguments, given))
    if isinstance(made, Model):
        return _adapted(made, starting)
    if not isinstance(made, nn.Module):
        raise InputError(
            f"model {name!r} returns a {type(made).__name__}",
            "it must return a torch module or a Model",
            "correct its return",
        )
    wrapping = settings if is_module else {}
    usual = {"value": "squared", "ratings": "squared", "times": "hazards"}.get(dataset.kind, "cross-entropy")
    loss = wrapping.get("loss", usual)
    begun = adapt(made, starting)
    return wrap_module(begun.module, str(loss), shape=_shape(name, wrapping), name=name, given=begun.given)


def _adapted(built: Model, starting: Mapping[str, object]) -> Model:
    if not starting:
        return built
    begun = adapt(built.module, dict(starting))
    again = wrap_module(begun.module, built.loss.name, shape=built.shape, name=built.name, given=begun.given)
    return replace(again, loss=built.loss)


def model_code(name: str) -> str | None:
    """A digest of the code of a model of the user's own; None for one of the package."""
    return None if name in BUILDERS else code_digest(name, Offered.MODEL)


def _shape(name: str, settings: Mapping[str, object]) -> tuple[int, ...] | None:
    shape = settings.get("shape")
    if shape is None:
        return None
    if not isinstance(shape, list | tuple) or not all(type(one) is int and one > 0 for one in shape):
        raise InputError(f"shape = {shape!r:.40} of {name}", "it must be a list of whole numbers", "write [1, 8, 8]")
    return cast("tuple[int, ...]", tuple(shape))
