"""The supervisor: the process that holds a mount and starts the clients that serve it."""
