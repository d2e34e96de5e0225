"""The worker's decisions, pure: admission, eviction, read-ahead, page ranges."""
