"""The cluster cache: nodes, pods, NodeGpus and reservations as the watches deliver them, and snapshots of it."""
