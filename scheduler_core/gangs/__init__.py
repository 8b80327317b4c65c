"""Gangs: pods that start together or not at all. Pure values and functions; ``scheduler_core.planner`` acts on them."""
