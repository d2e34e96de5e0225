"""The master's store behind one narrow interface."""
