"""A connector over an SQLite file, written from docs/connectors.md alone, and the suite on it."""
