"""Decisions of the worker: pure functions and small state machines that touch no disk, no clock."""
