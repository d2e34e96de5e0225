"""The node's worker: cache tiers, fills, all data traffic with the origin."""
