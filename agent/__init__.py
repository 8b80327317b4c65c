"""The node side: sources are probed into a snapshot, a snapshot is discovered into a topology."""
