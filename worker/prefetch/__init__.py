"""Small files that are fetched before they are opened."""
