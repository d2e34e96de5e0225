"""What the master knows of origins: listings, synchronization, origins that are unavailable."""
