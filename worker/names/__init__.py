"""The node's cache of a master's namespace."""
