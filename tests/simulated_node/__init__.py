"""Simulated GPU nodes: the kubelet's device manager, NVIDIA's device plugin, PodResources, and the fleet of them."""
