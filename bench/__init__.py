"""Benches: one runnable file per claim, native and peers in the same run."""
