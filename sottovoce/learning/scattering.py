"""Scattering features of images: moduli of wavelet responses, and of the wavelet responses of these, blurred.

Order 0 is the image itself, order 1 is `|x * psi_j|` for wavelets of scale j < J in L directions, order 2 is
`||x * psi_i| * psi_j|` for i < j. All are blurred by a Gaussian and kept at one point in each square of 2^J x 2^J
pixels (Mallat 2012; Bruna and Mallat 2013). Nothing is learned: the figures below are all there is.

    >>> Scattering((1, 28, 28), scales=2, directions=8).width                               # 81 channels of 7 x 7
    3969

A wavelet is a wave of frequency `3 pi / 4` over `2^j` under a Gaussian of deviation `0.8 2^j`, wider across its
direction, less that Gaussian times what makes its sum zero. Filters act on a circle, on which images are mirrored at
their edges.

Shapes: B images, C channels, P pixels of a side on the circle, L directions, M points of a side that are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional

from sottovoce.errors import InputError
from sottovoce.support.threads import chunks

DEVIATION, FREQUENCY = 0.8, 3 * math.pi / 4
"""Of the finest wavelet, in pixels and radians per pixel; the blur has half the deviation of the next wavelet."""

IN_GROUP = 3
"""So many channels of an image are brought to mean 0 and deviation 1 together."""

AT_ONCE = 16
"""So many images are in the cache at once: five times as many took half as long again."""

LEAST_VARIANCE = 1e-5
"""What is added to the variance of a group; of pixels between 0 and 1 that is less than can be seen."""


class Scattering:
    """Features of images of one shape, each image by itself."""

    def __init__(self, shape: tuple[int, ...], scales: int, directions: int) -> None:
        side = 1 << scales
        if len(shape) != 3 or min(shape[1:]) <= 2 * side or min(scales, directions) < 1:
            raise InputError(
                f"scattering with J={scales}, L={directions} of inputs of shape {shape}",
                "it takes images, channels x height x width, with sides of more than 2^(J+1) pixels",
                "lower J, or use fourier:D=1000",
            )
        self.shape, self.scales, self.directions = shape, scales, directions
        self._kept = [pixels // side for pixels in shape[1:]]
        self._circle = [(-(-pixels // side) + 2) * side for pixels in shape[1:]]
        self._blurs = [
            [_blur(around, kept, scale, scales) for around, kept in zip(self._circle, self._kept, strict=True)]
            for scale in range(scales)
        ]
        self._filters = {
            (coarse, scale): _wavelets([around >> coarse for around in self._circle], scale, directions)
            for coarse in range(scales)
            for scale in range(scales - coarse)
        }

    @property
    def channels(self) -> int:
        """Of each channel of an image."""
        pairs = self.scales * (self.scales - 1) // 2
        return 1 + self.scales * self.directions + pairs * self.directions**2

    @property
    def width(self) -> int:
        """Features of one image."""
        return self.shape[0] * self.channels * math.prod(self._kept)

    @torch.no_grad()
    def __call__(self, rows_BF: Tensor) -> Tensor:
        """Features of images that come flat, in groups of mean 0 and deviation 1."""
        images = rows_BF.view(-1, *self.shape)
        return torch.cat([self._together(images[some]) for some in chunks(len(images), AT_ONCE)])

    def _together(self, images: Tensor) -> Tensor:
        side, spare = 1 << self.scales, zip(reversed(self._circle), reversed(self.shape[1:]), strict=True)
        around = [part for circle, pixels in spare for part in (side, circle - pixels - side)]
        mirrored = functional.pad(images, around, mode="reflect").flatten(0, 1).unsqueeze(1)
        found = torch.cat([*self._responses(mirrored, 0, 0)], dim=1)
        groups = self.channels // math.gcd(self.channels, IN_GROUP)
        return functional.group_norm(found, groups, eps=LEAST_VARIANCE).reshape(len(images), -1)

    def _responses(self, maps: Tensor, coarse: int, order: int) -> Iterator[Tensor]:
        """The blurred maps, then those of all finer orders of them; maps have every `2^coarse`-th pixel."""
        rows, columns = self._blurs[coarse]
        yield rows @ maps @ columns.T
        if order == 2:
            return
        spectrum = torch.fft.fft2(maps).unsqueeze(2)
        for scale in range(1 if order else 0, self.scales - coarse):
            passed = _every(spectrum, self._filters[coarse, scale], 1 << scale)
            yield from self._responses(torch.fft.ifft2(passed).abs().flatten(1, 2), coarse + scale, order + 1)


def _every(spectrum: Tensor, waves: Tensor, step: int) -> Tensor:
    """The spectrum of every `step`-th pixel of what waves respond: frequencies that look alike there are added up."""
    rows, columns = (pixels // step for pixels in waves.shape[1:3])
    found: Tensor | None = None
    for down, across in product(range(step), repeat=2):
        alike = ..., slice(down * rows, (down + 1) * rows), slice(across * columns, (across + 1) * columns)
        part = torch.view_as_real(spectrum[alike]) * waves[*alike, :]
        found = part if found is None else found.add_(part)
    assert found is not None
    return torch.view_as_complex(found.div_(step**2))


def _frequencies(around: int) -> Tensor:
    """Radians per pixel of a circle of so many pixels, 5 x P: and those that look like them."""
    turns = torch.arange(-2, 3, dtype=torch.float64).unsqueeze(1)
    return 2 * math.pi * (torch.fft.fftfreq(around, dtype=torch.float64) + turns)


def _wavelets(around: list[int], scale: int, directions: int) -> Tensor:
    """The spectra of a scale's wavelets, L x P x P x 2: real numbers, twice, for both parts of what they multiply."""
    down, across = (_frequencies(pixels) for pixels in around)
    down, across = down.view(5, 1, -1, 1), across.view(1, 5, 1, -1)
    deviation, frequency, found = DEVIATION * 2**scale, FREQUENCY / 2**scale, []
    for turned in range(directions):
        angle = math.pi * turned / directions
        along, aside = (
            across * math.cos(angle) + down * math.sin(angle), down * math.cos(angle) - across * math.sin(angle)
        )  # fmt: skip
        wider = (aside * directions / 4).square()
        wave, still = (
            torch.exp(-((along - shift).square() + wider) * deviation**2 / 2).sum((0, 1)) for shift in (frequency, 0.0)
        )
        found.append(wave - still * (wave[0, 0] / still[0, 0]))
    return torch.stack([torch.stack([one, one], dim=-1) for one in found]).float()


def _blur(around: int, kept: int, scale: int, scales: int) -> Tensor:
    """From every `2^scale`-th pixel of a circle to one point in each `2^J` pixels of the image, M x P: each row adds up
    to 1.
    """
    side = 1 << scales
    centres = side + side * (torch.arange(kept, dtype=torch.float64) + 0.5) - 0.5
    away = (torch.arange(around >> scale) * (1 << scale) - centres.unsqueeze(1) + around / 2) % around - around / 2
    weights = torch.exp(-away.square() / (2 * (DEVIATION * 2 ** (scales - 1)) ** 2))
    return (weights / weights.sum(1, keepdim=True)).float()
