"""The state and the decisions of the master. Pure."""
