"""The node socket: sessions of FUSE clients and of the CLI."""
