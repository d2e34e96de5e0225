"""The prefetch of small files that are opened in order."""
