"""Requests of pods: fields of a Pod, its annotations and its workload type, parsed into a ``PodRequest``. Pure."""
