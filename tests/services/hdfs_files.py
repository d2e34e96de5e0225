"""Files of a test's own in HDFS."""

from __future__ import annotations

from typing import Any


def write(client: Any, path: str, data: bytes) -> None:
    """Writes a file, and the directories above it. `client`: of hdfs-native."""
    from hdfs_native import WriteOptions

    with client.create(path, WriteOptions(overwrite=True, create_parent=True)) as file:
        file.write(data)
