"""The admin API (`cachefs.core.admin`): JSON over HTTP for operators' programs, a thin layer over
the calls of a master."""
