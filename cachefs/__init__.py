"""CacheFS: object stores as a local file system, with warm bytes from RAM and SSD."""

__version__ = "0.1.0"
