"""Placement policies to compare with: each scores nodes, and the best one gets the pod."""
