"""HTTP and HTTPS transfers from an origin, by libcurl."""
