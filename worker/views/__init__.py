"""Native views: directories of which the node has everything, shown by the kernel alone."""
