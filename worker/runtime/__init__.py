"""Threads, clocks, rates and the memory budget of a worker."""
