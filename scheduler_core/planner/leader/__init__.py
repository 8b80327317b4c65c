"""One term of leadership: the view of the cluster, the queue, and the writes under way."""
