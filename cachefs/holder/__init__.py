"""A process that keeps descriptors for others. It imports the standard library only."""
