"""Placement quality, measured: a workload replayed on a cluster, by our policy and by others.

``ours`` decides by the very code that answers kube-scheduler (``extender``). What is simulated is everything around it:
arrivals and departures, kube-scheduler's own part, and the device plugin's choice inside the node.
"""
