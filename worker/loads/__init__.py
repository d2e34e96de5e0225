"""Tasks of load jobs."""
