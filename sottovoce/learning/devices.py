"""Where models, rows and gradients lie: in the memory of the processor, or of a device that torch knows.

Noise, batches and starting points are always drawn by the processor, so that they are the same wherever models lie.
"""

from __future__ import annotations

import torch

from sottovoce.errors import InputError

CPU = torch.device("cpu")


def find_device(name: str) -> torch.device:
    """A device by torch's name for it, if it is here: `cpu`, `cuda`, `cuda:1`, `mps`."""
    try:
        device = torch.device(name)
        torch.ones(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError):
        raise InputError(
            f"machine.device {name!r:.40}", f"torch {torch.__version__} finds no such device here", 'use "cpu"'
        ) from None
    return device
