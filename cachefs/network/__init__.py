"""Network access control shared by the HTTP servers and clients of masters and workers."""
