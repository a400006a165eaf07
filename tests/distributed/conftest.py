"""Groups of ranks for tests, started once for each number of ranks."""

from __future__ import annotations

import pytest

from tests.distributed.ranks import Pool


@pytest.fixture(scope="session")
def pools():
    """Ranks by their number, started when they are asked for."""
    found = {}

    def of(size):
        if size not in found:
            found[size] = Pool(size)
        return found[size]

    yield of
    for each in found.values():
        each.close()


@pytest.fixture(params=[2, 3])
def pool(request, pools):
    return pools(request.param)
