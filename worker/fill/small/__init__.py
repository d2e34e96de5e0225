"""Reads of whole small files from the origin, by the loop."""
