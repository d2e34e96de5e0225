"""The transport `kernel`: a session on /dev/fuse with passthrough and takeover."""
