"""The commands of `cachefs`, one module each."""
