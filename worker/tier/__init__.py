"""A tier: its contents, admission, eviction, health and maintenance."""
