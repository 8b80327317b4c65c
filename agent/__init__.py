"""The node agent: probes the sources of a machine into a snapshot and derives a topology from the snapshot."""
