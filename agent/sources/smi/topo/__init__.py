"""`nvidia-smi topo -m`: not an API, pasted through many programs, and available on every machine.

The stages, a module each: ``lines`` (text to clean lines), ``words`` (the cells of a row), ``header`` and ``affinity``
(the other columns), ``blocks`` (which lines are a matrix), ``columns`` (the column of each cell), ``merge`` (a
symmetric matrix and its problems), ``parse`` (all stages).
"""

from agent.sources.smi.topo.matrix import Cell, TopoGpu, TopoMatrix, TopoNic
from agent.sources.smi.topo.parse import parse_topo

__all__ = ["Cell", "TopoGpu", "TopoMatrix", "TopoNic", "parse_topo"]
