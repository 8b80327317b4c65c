"""Which pods form a gang, and what its members agree on. Pure."""
