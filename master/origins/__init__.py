"""The master's access to origins: listings, stats, synchronization, unavailable origins."""
