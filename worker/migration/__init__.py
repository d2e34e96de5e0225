"""Blocks on their way to new owners after a change of members."""
