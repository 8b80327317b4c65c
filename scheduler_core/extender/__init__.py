"""``gputopo extender``: the HTTP extender of kube-scheduler."""
