"""Packing: nodes for all members of a gang on one snapshot, or for many single pods. Pure."""
