"""Changes that a store reports itself: its events, and the names that the master then checks."""
