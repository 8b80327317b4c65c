"""Hostile values in every field that gputopo reads of objects in the cluster."""
