"""What the long-running programs share: settings, logs, metrics, signals, thread-safe decoding."""
