"""The contract between the agent, the scheduler component and other clients: label keys, values, reasons.

No other package contains a label key or parses a label value.
"""

from gputopo.labels.annotation import AnnotationError, EncodeError
from gputopo.labels.decode import NoTopologyError, decode_topology
from gputopo.labels.encode import EncodedTopology, encode_topology

__all__ = ["AnnotationError", "EncodeError", "EncodedTopology", "NoTopologyError", "decode_topology", "encode_topology"]
