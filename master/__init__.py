"""The metadata master: namespace, mount table, sync with the origin, events."""
