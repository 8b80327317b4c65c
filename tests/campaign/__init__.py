"""Campaigns: hostile values in objects of the cluster; failing NVML calls and hardware faults.

The test suite runs samples; docs/testing.md has the commands for the whole, and the results.
"""
