"""Placement: all nodes once, in blocks of equal size."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce import InputError
from sottovoce.distributed.sharded_rows import place_nodes


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 11])
def test_blocks_are_all_nodes_once_in_equal_shares(ranks):
    found = place_nodes(11, ranks)
    assert np.concatenate(found).tolist() == list(range(11))
    sizes = [len(block) for block in found]
    assert max(sizes) - min(sizes) <= 1


def test_more_ranks_than_nodes_are_refused():
    with pytest.raises(InputError, match="4 processes for 3 nodes"):
        place_nodes(3, 4)
