"""The contract between the agent, the scheduler component and everybody else: keys, values, schemas, reasons.

``encode`` and ``decode`` are neighbours here; nobody else spells a key or reads a value.
"""

from gputopo.labels.annotation import AnnotationError, EncodeError
from gputopo.labels.decode import NoTopologyError, decode_topology
from gputopo.labels.encode import EncodedTopology, encode_topology

__all__ = ["AnnotationError", "EncodeError", "EncodedTopology", "NoTopologyError", "decode_topology", "encode_topology"]
