"""A node's side of a cluster: its view of the members, the master's namespace with a cache, and the
sources that its files come from."""
