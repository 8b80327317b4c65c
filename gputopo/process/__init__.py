"""Shared by the long-running programs: settings, logs, metrics, signals, thread-safe decoding."""
