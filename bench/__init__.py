"""Benches: one runnable file per claim; native and peers are measured in the same run."""
