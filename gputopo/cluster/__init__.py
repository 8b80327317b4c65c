"""A cluster as a person looks at it: its GPU nodes, and what its GPU pods got.

``read`` does the I/O, ``terminal`` prints; the rest is pure.
"""
