"""Several tiers as one cache: see `worker.tiers.tiers`."""
