"""The contract between the agent, the scheduler component and everybody else: keys, values, schemas, reasons.

``encode`` and ``decode`` are neighbours here; nobody else spells a key or reads a value.
"""

from gputopo.labels.annotation import AnnotationError, EncodeError
from gputopo.labels.decode import NoTopologyError, decode
from gputopo.labels.encode import NodeFacts, encode

__all__ = ["AnnotationError", "EncodeError", "NoTopologyError", "NodeFacts", "decode", "encode"]
