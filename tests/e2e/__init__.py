"""A real Kubernetes control plane on loopback and simulated GPU nodes; docs/testing.md is the manual."""
