"""The agent's process: discovery passes, publication, health endpoints, metrics."""
