"""One adapter per UFS behind one blocking interface, and the decorators composed around it."""
