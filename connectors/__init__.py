"""The blocking interface to a UFS, an adapter per kind of UFS, and the decorators around it."""
