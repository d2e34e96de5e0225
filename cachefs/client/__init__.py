"""The client side of the node socket: a trio connection for FUSE, a blocking one for the CLI."""
