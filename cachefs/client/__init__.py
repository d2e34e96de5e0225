"""The client side of the node socket (trio for FUSE, blocking for the CLI) and of HTTP calls."""
