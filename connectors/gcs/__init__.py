"""The connector of Google Cloud Storage: its JSON API, and Google's credentials."""
