"""Recordings of machines: probed, read, written, scrubbed, and turned into a topology."""
