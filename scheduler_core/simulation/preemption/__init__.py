"""Preemption simulated: jobs of several tiers, and the policies that evict for them, side by side."""
