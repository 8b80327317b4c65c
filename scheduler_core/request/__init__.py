"""What a pod asks: fields of a Pod, its annotations and its workload class, parsed into a ``PodRequest``. Pure."""
