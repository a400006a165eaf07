"""All that a run or a rank imports sooner or later: loaded once, before tests fork their processes (forked.py)."""

import sklearn.datasets  # noqa: F401
import torch

import sottovoce.cli.peer
import sottovoce.cli.run
import sottovoce.distributed.ranks
import sottovoce.federation.joining
import sottovoce.report.page
import sottovoce.run.execute
import sottovoce.support.processes  # noqa: F401
import tests.distributed.ranked  # noqa: F401

torch.set_num_threads(1)  # a pool of threads would not survive a fork
