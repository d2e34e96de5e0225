"""The connector of local directories."""
