"""Bytes between workers: who is asked (`source`), who answers (`server`)."""
