"""Measurement of placement quality: replays of a workload on a cluster, with gputopo's policy and with others.

The policy ``ours`` decides by the same code that answers kube-scheduler (``extender``). Everything around it is
simulated: arrivals and departures, kube-scheduler's own plugins, and the device plugin's choice inside the node.
"""
