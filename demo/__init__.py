"""`make demo`: a bucket on loopback is mounted, read cold and warm, killed and mounted again. Then
a cluster loses a worker while it is read."""
