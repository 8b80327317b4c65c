"""The commit protocol: from what the API server has to the writes that may be done next. Pure."""
