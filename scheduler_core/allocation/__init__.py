"""Which GPUs of a node can be free, and which of them the device plugin may allocate. Pure."""
