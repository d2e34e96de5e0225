"""Whether the use of a tree is seen, on a real directory, with the kernel's inotify."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.worker.rig import descriptors
from tests.unit.worker_views.test_trees import VIEW, Disk, build, page, sample
from tests.unit.worker_views.test_trees import directory as directory_record
from worker.store import tree_watches, trees
from worker.store.inotify import Inotify
from worker.store.tree_watches import CannotWatch, TreeWatches

MOST = 1000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    before = descriptors()
    made = Disk(tmp_path / "tier")
    build(made, sample(made))
    yield made
    made.close()
    assert not descriptors() - before


def watch(disk: Disk, most: int = MOST) -> TreeWatches:
    watches = disk.tier.tree_watches
    watches.watch(disk.tier.views_fd, disk.tier.index, VIEW, most)
    return watches


def was_used(disk: Disk) -> bool:
    return disk.tier.tree_watches.was_used(disk.tier.views_fd, VIEW)


def tree(disk: Disk) -> Path:
    return disk.path / "views" / f"{VIEW:016x}"


def test_each_open_in_a_tree_is_a_use_and_nothing_else_is(disk: Disk) -> None:
    watch(disk)
    assert not was_used(disk)
    top = tree(disk)
    for use in (
        lambda: (top / "f").read_bytes(),
        lambda: (top / "a" / "b").read_bytes(),
        lambda: os.listdir(top),
        lambda: os.listdir(top / "a"),
        lambda: (top / "empty").read_bytes(),
    ):
        for _ in range(2):  # the watch that has ended is armed again
            use()
            use()
            assert was_used(disk)
            assert not was_used(disk)
    content = next((disk.path / "pub").iterdir())
    content.read_bytes()
    os.stat(top / "f")
    os.lstat(top / "a" / "b")
    os.readlink(top / "link")
    os.close(os.open(top / "f", os.O_PATH))
    assert not was_used(disk)


def test_an_open_below_a_directory_that_is_open_is_a_use(disk: Disk) -> None:
    below = os.open(tree(disk) / "a", os.O_RDONLY | os.O_DIRECTORY)
    watch(disk)
    os.close(os.open("b", os.O_RDONLY, dir_fd=below))
    assert was_used(disk)
    os.close(below)
    assert not was_used(disk)


def test_trees_are_watched_one_by_one(disk: Disk) -> None:
    watches = watch(disk)
    (tree(disk) / "f").read_bytes()
    watches.watch(disk.tier.views_fd, disk.tier.index, VIEW, MOST)  # it was built again
    assert not was_used(disk)
    watches.forget(VIEW)
    watches.forget(VIEW)
    with pytest.raises(CannotWatch):
        was_used(disk)


def test_a_tree_that_is_removed_ends_its_watches(disk: Disk) -> None:
    watches = watch(disk)
    (tree(disk) / "a" / "b").unlink()
    (tree(disk) / "a").rmdir()
    assert was_used(disk) in (True, False)
    (tree(disk) / "f").read_bytes()
    assert was_used(disk)
    watches.close()
    watches.close()


def test_events_without_room_count_as_a_use(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    watch(disk)
    opens = Inotify.opens
    monkeypatch.setattr(Inotify, "opens", lambda self: opens(self)._replace(lost=True))
    assert was_used(disk)
    monkeypatch.setattr(Inotify, "opens", opens)
    assert not was_used(disk)
    (tree(disk) / "a" / "b").read_bytes()
    assert was_used(disk)


def test_more_directories_than_allowed_are_refused(disk: Disk) -> None:
    watch(disk, 2)
    with pytest.raises(CannotWatch, match="more than 1 directories"):
        watch(disk, 1)
    with pytest.raises(CannotWatch):
        was_used(disk)


@pytest.mark.parametrize(
    ("number", "setting"),
    [(errno.ENOSPC, "max_user_watches"), (errno.EMFILE, "max_user_instances")],
)
def test_a_limit_of_the_kernel_is_named(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, number: int, setting: str
) -> None:
    def refuse(self: Inotify, directory: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Inotify, "watch", refuse)
    with pytest.raises(CannotWatch, match=setting):
        watch(disk)
    monkeypatch.undo()
    watch(disk)
    assert not was_used(disk)


def test_a_tier_has_a_bounded_number_of_watches(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_watches, "MOST_WATCHES", 1)
    with pytest.raises(CannotWatch, match="2 directories, and 1 more"):
        watch(disk)
    monkeypatch.setattr(tree_watches, "most_watches", lambda: 0)
    with pytest.raises(CannotWatch, match="and 0 more"):
        watch(disk)


def test_a_deep_tree_is_watched(disk: Disk) -> None:
    """Its paths are longer than the kernel takes in one call."""
    names = [b"%03d" % level * 60 for level in range(40)]
    path: tuple[bytes, ...] = ()
    ino = 20
    for level, name in enumerate(names):
        below = page({name + b"/": directory_record(200 + level)}, ino, b"a", *path)
        trees.apply(disk.tier, disk.writer, below)
        ino, path = 200 + level, (*path, name)
    watch(disk)
    assert not was_used(disk)
    fd = os.open(tree(disk) / "a", os.O_PATH)
    for name in names:
        above, fd = fd, os.open(name, os.O_PATH, dir_fd=fd)
        os.close(above)
    os.close(os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd))
    os.close(fd)
    assert was_used(disk)
