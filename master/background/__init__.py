"""The background syncs: every path with a policy `sync_background` is compared once an interval."""
