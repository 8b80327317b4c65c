"""Damaged inputs: mutants of every input format, and a judge of what is published of them.

`make mutants` runs every mutant; `tests/mutants/test_mutants.py` runs a sample of each format.
"""
