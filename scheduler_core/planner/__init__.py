"""``gputopo planner``, the only writer: it plans gangs, commits plans, ungates pods and rolls back."""
