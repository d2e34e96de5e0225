"""One tier: its contents, admission, eviction, health and upkeep."""
