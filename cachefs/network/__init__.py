"""Access control shared by servers and clients, of HTTP and of Unix sockets."""
