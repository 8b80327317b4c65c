"""Placement policies to compare with: each scores nodes, and the pod goes to the best node."""
