"""The base of all messages of the node socket. See `cachefs.core.messages`."""

import msgspec


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all bodies. The tag is the class name."""
