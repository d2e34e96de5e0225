"""The worker's execution of load jobs."""
