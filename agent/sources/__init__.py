"""Where facts come from. Each source can fail alone without losing the others."""
