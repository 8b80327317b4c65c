"""`nvidia-smi topo -m`: nobody's API, pasted through everything, and what everybody has at hand.

The stages, a module each: ``lines`` (text to clean lines), ``words`` (the cells of a row), ``header`` and ``affinity``
(the other words), ``blocks`` (which lines are a matrix), ``columns`` (which cell belongs where), ``merge`` (a symmetric
matrix and what is wrong with it), ``parse`` (all in order).
"""

from agent.sources.smi.topo.matrix import Cell, TopoGpu, TopoMatrix, TopoNic
from agent.sources.smi.topo.parse import parse_topo

__all__ = ["Cell", "TopoGpu", "TopoMatrix", "TopoNic", "parse_topo"]
