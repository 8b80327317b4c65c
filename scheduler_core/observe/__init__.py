"""What the placements of others cost: the cluster's own scheduler places, and we say what we would have chosen.

watch threads ──Batch──▶ Observer (Knowledge, what is pending, sums) ──Placement──▶ lines, report, metrics
"""
