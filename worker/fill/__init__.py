"""Fills of page ranges into the cache: sources, retries, segments."""
