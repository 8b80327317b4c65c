"""Compares the placements of the cluster's own scheduler with the placements that gputopo would have chosen.

watch threads ──Batch──▶ Observer (cluster cache, pending pods, totals) ──ObservedPlacement──▶ lines, report, metrics
"""
