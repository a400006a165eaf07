"""Views of a record: the same image shifted or mirrored, drawn anew in each round, by coins that depend on no row.

The gradient of a record is the mean over its K views, and is clipped after that: a record moves no more than without
views, and its gradient varies less.

    >>> parse_views("shift:2,flip", 4, (1, 8, 8)).variants
    50

Shapes: N nodes, B examples, K views, F inputs, V variants.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from sottovoce.core.random_streams import RandomSource
from sottovoce.errors import InputError


@dataclass(frozen=True)
class Views:
    """K views of each image of a shape, channels x height x width: shifted by up to so many pixels, mirrored or not."""

    count: int
    shift: int
    flip: bool
    shape: tuple[int, int, int]

    @property
    def variants(self) -> int:
        """How many views an image has."""
        return len(self.sources)

    @cached_property
    def sources(self) -> Tensor:
        """Where each pixel of each variant comes from, V x F; F stands for zero, beyond the edge."""
        channels, height, width = self.shape
        steps = range(-self.shift, self.shift + 1)
        edge = self.shift
        numbers = np.arange(channels * height * width).reshape(self.shape)
        wide = np.pad(numbers, ((0, 0), (edge, edge), (edge, edge)), constant_values=numbers.size)
        found = [wide[:, edge + y :, edge + x :][:, :height, :width] for y in steps for x in steps]
        found += [one[:, :, ::-1] for one in found] if self.flip else []
        return torch.from_numpy(np.stack(found).reshape(len(found), -1))

    def coins(self, key: RandomSource, node: int, round: int, examples: int) -> Tensor:
        """Which variants a node takes in a round, B x K."""
        drawn = key.stream("views", [node], round).uniforms(examples * self.count)
        return torch.from_numpy((drawn * self.variants).astype(np.int64).reshape(examples, self.count))

    def of(self, inputs: Tensor, coins: Tensor) -> Tensor:
        """The views of each example one after the other, N x B x K F. Pixels are moved, and never multiplied."""
        padded = torch.cat([inputs, inputs.new_zeros(*inputs.shape[:-1], 1)], dim=-1)
        return padded.gather(-1, self.sources[coins.cpu()].flatten(-2).to(inputs.device))


def parse_views(spec: str, count: int, shape: tuple[int, ...]) -> Views | None:
    """`shift:PIXELS`, `flip`, or both; None where nothing is asked for."""
    if not spec and count == 1:
        return None
    found = re.fullmatch(r"(?:shift:(\d+))?,?(flip)?", spec) if spec else None
    if found is None or not (found[1] or found[2]):
        raise InputError(
            f"augment {spec!r:.40} with {count} views", "views differ by shift:PIXELS, flip or both",
            'write augment = "shift:2,flip"',
        )  # fmt: skip
    shift = int(found[1] or 0)
    if len(shape) != 3 or shift >= min(shape[1:]):
        raise InputError(f"augment {spec} of rows of shape {shape}", "it moves the pixels of images", "leave it out")
    return Views(count, shift, found[2] is not None, (shape[0], shape[1], shape[2]))
