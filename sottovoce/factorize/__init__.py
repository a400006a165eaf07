"""Noise that costs least: the correlation over rounds that suits a graph, with a proof of how close to optimal it is.

- `workload`: what the graph contributes, a T x T matrix;
- `search`: the optimiser; `certificate`: the lower bound it stops on; `structures`: families of C;
  `windows`: runs that are longer than their participation;
- `adversary`: noise against a node or a coalition instead of everyone;
- `cache`: results that were found before; `picture`: how they look on a terminal;
- `choose`: `factorize` itself; `result`: what it returns.
"""

from sottovoce.factorize.choose import ByClass, factorize, factorize_by_class
from sottovoce.factorize.result import Factorization, ForView

__all__ = ["ByClass", "Factorization", "ForView", "factorize", "factorize_by_class"]
