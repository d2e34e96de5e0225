"""The process that holds a mount and starts who serves it."""
