"""Views over clients that die, disks that fail, and commands that are interrupted."""

from __future__ import annotations

import os
from pathlib import Path

from cachefs.core.model import NamespaceId
from tests.integration.test_views import origin_with, run
from tests.integration.views_rig import FakeMount, Node, node
from worker.views.views import _Report


class DeadMount(FakeMount):
    """A client that has died: the first command to it shows that, and ends it. Later ones are
    dropped."""

    is_closed = False

    def send_cover(
        self, cover: int, namespace: NamespaceId, ino: int, path: bytes, fd: int
    ) -> None:
        os.close(fd)
        self.send_uncover(cover)

    def send_uncover(self, cover: int) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.views.left(self, is_followed=False)


def knows(one: Node, mount: FakeMount) -> bool:
    """Returns whether anything of the node still counts on the client of a mount."""
    views = one.views._views
    at_views = any(mount in view._hosts or mount in view.covers._table.hosts for view in views)
    return at_views or mount in one.views._hosts


def test_a_client_that_dies_while_it_joins_is_known_to_no_view(tmp_path: Path) -> None:
    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            await one.mount()
            for path in (b"train/c0", b"train/c1", b"other"):
                assert (await one.freeze(path)).state == "covered"
            dead = DeadMount(one.views, "/dead")
            one.views.joined(dead)
            assert not knows(one, dead)

    run(script())


def test_the_mounts_beside_one_that_has_died_are_covered(tmp_path: Path) -> None:
    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            dead = DeadMount(one.views, "/dead")
            one.views.joined(dead)
            mount = await one.mount()
            (status,) = (await one.views.freeze(one.namespace, b"train", wait=True)).views
            assert (status.state, status.covers) == ("covered", 1)
            assert not knows(one, dead)
            assert mount.trees() == {b"train": await one.expected(b"train")}

    run(script())


def test_reports_of_a_client_that_has_died_are_not_taken(tmp_path: Path) -> None:
    """The worker takes them once it has read its views; the first one ends the client."""

    async def script() -> None:
        async with node(tmp_path, origin_with()) as one:
            await one.mount()
            await one.freeze(b"train")
            dead = DeadMount(one.views, "/dead")
            covers = (1, one.view(b"train").covers.number)  # the first one is unknown
            one.views._reports = [_Report(dead, cover, True, "") for cover in covers]
            one.views._take_reports(also_unknown=True)
            assert not knows(one, dead)

    run(script())
