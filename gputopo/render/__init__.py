"""Pure renderings of a NodeTopology: text, JSON, drawings."""
