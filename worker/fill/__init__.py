"""A page range on its way into the cache: sources, retries, segments."""
