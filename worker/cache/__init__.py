"""The node's cache, of one tier or of several: handles, reads, policies, moves between tiers."""
