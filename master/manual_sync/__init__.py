"""The manual syncs (`cachefs sync`): compare names with their origin for an operator."""
