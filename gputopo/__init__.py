"""gputopo: the shape of a GPU machine, as values, labels and pictures."""

__version__ = "0.1.0"
