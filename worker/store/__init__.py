"""A tier's directory on disk: index, cache files, published links, scratch files."""
