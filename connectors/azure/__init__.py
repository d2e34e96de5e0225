"""The connector of Azure Blob Storage: its REST API, and Azure's credentials."""
