"""The covers of a mount: read-only clones of views' trees over its directories."""
