"""Readers and parsers of all sources. The failure of one source does not affect the others."""
