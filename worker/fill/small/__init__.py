"""Whole small files from the origin, by a process of its own."""
