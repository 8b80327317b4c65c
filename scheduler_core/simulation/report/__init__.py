"""The results of simulated runs, for people (text, HTML) and for programs (JSON)."""
