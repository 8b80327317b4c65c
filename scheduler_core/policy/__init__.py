"""The cluster owner's placement policy: its file, its profiles, and their reload."""
