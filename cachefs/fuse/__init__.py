"""The file system as the kernel sees it: `vfs` (logic) and the transports under it."""
