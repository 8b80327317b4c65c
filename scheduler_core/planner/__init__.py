"""``gputopo planner``, the only writer: it plans gangs, commits, lets go, verifies and takes back."""
