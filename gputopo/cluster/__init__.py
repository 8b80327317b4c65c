"""The GPU nodes and GPU pods of a cluster: `gputopo nodes`, `pods`, `cleanup`, `release`. ``read`` does the I/O."""
