"""The commands of `cachefs`, a module each."""
