"""Bytes of HTTP and HTTPS bodies by libcurl: the one way in which they come from an origin."""
