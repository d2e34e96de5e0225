"""The connectors on top of libraries of file systems: any of fsspec and any of pyarrow."""
