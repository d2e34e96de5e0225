"""The tier on disk: index, cache files, published links, scratch."""
