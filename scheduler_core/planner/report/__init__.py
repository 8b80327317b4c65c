"""Gangs as a person who asks sees them: `gputopo gangs`, `gputopo why gang`.

    reading ──▶ View ──▶ listing ──▶ table, document          all gangs
                  └────▶ story (prospects) ──▶ text, document  one of them

The planner's own code reads, counts and plans; nothing is written. What only a running planner knows, ``said`` reads
from its page /gangs.
"""
