"""The admin API (`cachefs.core.admin`): JSON over HTTP for people's programs, a thin edge over the
calls of a master."""
