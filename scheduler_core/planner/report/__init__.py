"""Gangs as `gputopo gangs` and `gputopo why gang` show them. Nothing is written.

    read ──▶ View ──▶ listing ──▶ tables, document             all gangs
               └────▶ explain (prospects) ──▶ text, document   one gang

The planner's own code reads, counts and plans. ``planner_page`` adds what only a running planner knows.
"""
