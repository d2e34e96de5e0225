"""The connector of S3 and its requests."""
