"""The agent's process: one pass after the other, health, metrics, publication."""
