"""The transfer of pages between workers: `source` requests them, `server` sends them."""
