"""Which running pods to evict for a gang that does not fit: policy, cost, search. Pure."""
