"""`cachefs sync`: names compared with their origin at an operator's request."""
