"""The transport `kernel`: our own session on /dev/fuse, with passthrough and takeover."""
