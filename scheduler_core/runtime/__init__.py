"""What the long-running programs share: HTTP servers, the event loop, leader election, Events."""
