"""Files of sizes for which no cache keeps account of pages: sparse ones, and wrong replies."""

from __future__ import annotations

import errno
from pathlib import Path

import msgspec
import pytest

from cachefs.core.errors import FileTooLarge
from cachefs.core.placement import LARGEST_FILE_BYTES
from tests.unit.worker.rig import MIB, NAMESPACE, Rig, run


def test_a_file_of_an_absurd_size_is_not_opened(tmp_path: Path) -> None:
    """Its bitmap of pages would take 1 TiB; the one of the largest file that is opened, 8 MiB."""

    async def script() -> None:
        rig = Rig(tmp_path, 100 * MIB)
        for ino, size in ((1, LARGEST_FILE_BYTES + 1), (2, (1 << 63) - 1), (3, LARGEST_FILE_BYTES)):
            rig.put(ino, b"")
            rig.space.origins[ino] = msgspec.structs.replace(rig.space.origins[ino], size=size)
        async with rig.worker() as worker:
            for ino in (1, 2):
                with pytest.raises(FileTooLarge) as refused:
                    await worker.open(NAMESPACE, ino)
                assert refused.value.errno == errno.EFBIG
            worker.release((await worker.open(NAMESPACE, 3, past_tier=True)).handle)

    run(script())
