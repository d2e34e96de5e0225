"""Text of other processes, origins and users, as one line for terminals and logs. Pure."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Returns a text with its control characters, line ends among them, as `\xNN` or `\n`: a
    terminal would act on them, and a log would have lines that no process wrote."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cut(text: str, most_chars: int) -> str:
    """Returns a text of at most so many characters; the end of a longer one becomes '…'."""
    return text if len(text) <= most_chars else f"{text[: most_chars - 1]}…"
