"""The base of all messages of the node socket. See `cachefs.core.messages`."""

from typing import Final

import msgspec

# What msgspec raises for bytes of another process: malformed, not UTF-8, or nested too deeply.
DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all bodies. The tag is the class name."""
