"""Random faults and attacks beside a running workload."""
