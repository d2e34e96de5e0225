"""This worker's membership of a cluster, and its calls to the master."""
