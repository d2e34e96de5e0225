"""Golden names: what docs/FORMAT.md says of content ids and of the state home."""

from __future__ import annotations

from cachefs.core.model import ContentId, NamespaceId, UfsSpec
from cachefs.launcher.state import source_id


def test_a_content_id_is_72_digits() -> None:
    content = ContentId(NamespaceId(bytes(range(16))), 0x102, 0, 0x1122334455667788)
    name = "000102030405060708090a0b0c0d0e0f0000000000000102000000001122334455667788"
    assert content.name == name
    assert ContentId.parse(name) == content


def test_the_directory_of_a_source() -> None:
    """A trailing '/' changes nothing; another endpoint is another source."""
    assert source_id(UfsSpec("s3://b/p/")) == "7fb9692596506b4d"
    pointed = UfsSpec("s3://b/p", {"endpoint_url": "http://h:1/"})
    assert source_id(pointed) == "eb36717fd1c63eca"
