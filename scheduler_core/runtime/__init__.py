"""Shared by the long-running programs: HTTP servers, the event loop, leader election, Events."""
