"""The networks of the papers' experiments, as plain torch modules. None of them mixes examples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}


def chain(widths: Sequence[int], activation: str = "relu", bias: bool = True) -> nn.Sequential:
    """Linear layers of these widths with the activation between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after, bias=bias), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])


def small_cnn(
    shape: tuple[int, ...], outputs: int, filters: Sequence[int] = (16, 32), groups: int = 8
) -> nn.Sequential:
    """MAFALDA's FEMNIST net: 3 x 3 convolutions with ReLU and 2 x 2 max-pooling, group norm, one linear layer.

    The paper is silent on padding and groups: here sides are padded by one, and channels are in 8 groups.
    """
    channels, height, width = shape
    layers: list[nn.Module] = []
    for before, after in pairwise((channels, *filters)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
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


def gn_resnet18(shape: tuple[int, ...], outputs: int, width: int = 64, groups: int = 32) -> nn.Sequential:
    """ResNet-18 for small images: 3 x 3 stem without pooling, group norm in place of batch norm."""
    stem = [nn.Conv2d(shape[0], width, 3, padding=1, bias=False), nn.GroupNorm(groups, width), nn.ReLU()]
    blocks: list[nn.Module] = []
    before = width
    for stage in range(4):
        after = width * 2**stage
        blocks += [Block(before, after, 1 if stage == 0 else 2, groups), Block(after, after, 1, groups)]
        before = after
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs))


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
