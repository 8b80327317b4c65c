"""The commit protocol: reconcile the observed cluster into the writes that may be done next. Pure."""
