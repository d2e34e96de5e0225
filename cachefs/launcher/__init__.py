"""Starts servers and clients as processes; the only place that knows master and worker."""
