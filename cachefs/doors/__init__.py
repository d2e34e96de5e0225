"""What the HTTP servers of masters and workers have in common: who may connect, and who asks."""
