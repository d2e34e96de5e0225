"""Starts servers and clients as processes. The only package that imports master and worker."""
