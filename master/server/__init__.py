"""The master on the network: calls, membership and event streams over HTTP."""
