"""The base of everything that a frame of the node socket carries."""

import msgspec


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all bodies. The tag is the class name."""
