"""Filter, score and rank nodes for a pod on one snapshot. Pure."""
