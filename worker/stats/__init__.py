"""Counters of a worker."""
