"""Definitions that all packages share: model, errors, units, configuration, messages. Pure."""
