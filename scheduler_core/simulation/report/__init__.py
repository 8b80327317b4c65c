"""What replays came to, for people (text, HTML) and for programs (JSON)."""
