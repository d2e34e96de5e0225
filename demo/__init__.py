"""`make demo`: a bucket on loopback, mounted, read cold and warm, killed and mounted again; then a
cluster that loses a worker while it is read."""
