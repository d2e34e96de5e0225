"""The master's decisions, pure."""
