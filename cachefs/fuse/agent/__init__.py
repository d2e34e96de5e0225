"""The agent of a node: it starts a supervisor for each mount that the node's holder has."""
