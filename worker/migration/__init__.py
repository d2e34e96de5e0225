"""The migration of blocks to their owners after a membership change or a fill."""
