"""A loadable ``libnvidia-ml.so.1``, compiled from C, and the programs run with it as on a node with GPUs."""
