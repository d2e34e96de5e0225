"""The connector of object stores whose HTTP API names versions, and what these stores share."""
