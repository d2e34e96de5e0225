"""The bodies of the admin API about sources. Pure."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, field

from cachefs.core import cluster as c
from cachefs.core.admin import Answer, Request, same_fields
from cachefs.core.admin_paths import PathText, bytes_of, text_of
from cachefs.core.model import UfsSpec
from cachefs.core.ufs import PUSH_INTERVAL_S


class NewSource(Request, frozen=True):
    """A source. `url`: s3://bucket/prefix or file:///path. `options`: as of `cachefs ufs add`."""

    path: PathText
    url: Annotated[str, Meta(min_length=1, max_length=4096)]
    options: dict[str, str] = field(default_factory=dict)
    sync_interval_s: Annotated[float, Meta(ge=-1, le=1e12)] = 60.0
    push: Annotated[str, Meta(max_length=4096)] = ""


class SourceChange(Request, frozen=True):
    """Changes of a source: `options` are set, the options `unset` removed. null: the sync interval
    and the feed stay. `push`: "webhook:NAME", "sqs:URL", "poll:5s", or "" for none.
    `push_interval_s`: for how long names are valid while changes are reported. Inodes and cached
    bytes stay."""

    options: dict[str, str] = field(default_factory=dict)
    unset: list[str] = field(default_factory=list)
    sync_interval_s: Annotated[float, Meta(ge=-1, le=1e12)] | None = None
    push: Annotated[str, Meta(max_length=4096)] | None = None
    push_interval_s: Annotated[float, Meta(ge=0, le=1e12)] | None = None


class SourceAdded(Answer, frozen=True):
    """A source that was added. `warning`: for people, for example that it hides other names."""

    path: PathText
    url: str
    ino: int
    warning: str = ""


class Source(Answer, frozen=True):
    path: PathText
    url: str
    options: dict[str, str]
    sync_interval_s: float
    origin_down: bool = False
    warning: str = ""
    push: str = ""
    pushed: int = 0
    pushed_at: float = 0.0
    push_interval_s: float = PUSH_INTERVAL_S
    feed_current_at: float = 0.0
    feed_error: str = ""
    background_last_at: float = 0.0
    background_next_at: float = 0.0
    background_error: str = ""

    @classmethod
    def of(cls, row: c.UfsRow) -> Source:
        same = same_fields(row, _SAME_OF_SOURCES)
        return cls(path=text_of(row.path), url=row.source.url, options=row.source.options, **same)

    def row(self) -> c.UfsRow:
        same = same_fields(self, _SAME_OF_SOURCES)
        return c.UfsRow(
            path=b"/" + bytes_of(self.path), source=UfsSpec(self.url, self.options), **same
        )


_SAME_OF_SOURCES: Final = tuple(
    name for name in Source.__struct_fields__ if name not in ("path", "url", "options")
)


class Sources(Answer, frozen=True):
    items: list[Source]
    next: str | None = None
