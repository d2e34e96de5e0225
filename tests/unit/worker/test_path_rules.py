"""What policies say of a content by its path: admission, and quotas."""

from __future__ import annotations

from pathlib import Path

import msgspec

from cachefs.core.policies import Rule
from tests.unit.worker.rig import MIB, Rig, open_reader, read, run
from worker.worker import Worker

SIZE = 2 * MIB


def put(rig: Rig, ino: int, rule: Rule) -> None:
    rig.put(ino, SIZE)
    rig.space.origins[ino] = msgspec.structs.replace(rig.space.origins[ino], rule=rule)


async def cached(worker: Worker, rig: Rig, *inos: int) -> list[bool]:
    return [await worker.cached_bytes(rig.content(ino)) == SIZE for ino in inos]


def test_admission_by_path(tmp_path: Path) -> None:
    """In a full cache a path's own word decides, whatever the worker is set to."""

    async def script() -> None:
        for default, said in (("fill", "always"), ("always", "fill")):
            rig = Rig(tmp_path / default, 32 * MIB, admission=default)
            (tmp_path / default).mkdir()
            async with rig.worker() as worker:
                for ino in range(1, 16):
                    put(rig, ino, Rule())
                    assert await read(worker, ino) == rig.data[ino]
                put(rig, 100, Rule(admission=said))
                put(rig, 101, Rule())
                for ino in (100, 101):
                    reader = await open_reader(worker, ino)
                    assert await reader.at(0, SIZE) == rig.data[ino]
                    reader.close()
                found = await cached(worker, rig, 100, 101)
                assert found == [
                    said == "always",
                    default == "always",
                ]

    run(script())
