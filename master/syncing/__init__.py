"""Syncs on demand: comparisons of paths with their origins, asked for by operators."""
