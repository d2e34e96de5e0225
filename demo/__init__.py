"""`make demo`: a bucket on loopback, mounted, read cold and warm, killed and mounted again."""
