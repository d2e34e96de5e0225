"""Downloads: bodies that another process writes straight into files."""
