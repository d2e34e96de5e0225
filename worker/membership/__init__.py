"""This worker as a member of a cluster: its calls to the master."""
