"""Recordings of machines: probe, read, write, scrub, and derive a topology."""
