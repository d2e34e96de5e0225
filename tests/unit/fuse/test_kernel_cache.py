"""Invalidations reach the kernel in order for each directory, from dedicated threads, bounded."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from cachefs.fuse.kernel_cache import MAX_WAITING, THREADS, KernelCache


class Kernel:
    """Names of the directories in `hanging` wait for `gate`, as for an unanswered lookup there."""

    def __init__(self) -> None:
        self.can_distrust = True
        self.hanging: set[int] = set()
        self.gate = threading.Event()
        self.entries: list[tuple[int, bytes]] = []
        self.distrusted = 0
        self.blocked = 0
        self.changed = threading.Condition()

    def invalidate_entry(self, parent: int, name: bytes) -> None:
        if parent in self.hanging:
            with self.changed:
                self.blocked += 1
                self.changed.notify()
            assert self.gate.wait(10)
        with self.changed:
            self.entries.append((parent, name))
            self.changed.notify()
        if name == b"unknown":
            raise FileNotFoundError

    def distrust_all(self) -> bool:
        with self.changed:
            self.distrusted += 1
            self.changed.notify()
        return self.can_distrust

    def wait(self, entries: int, *, distrusted: int = 0, blocked: int = 0) -> None:
        with self.changed:
            assert self.changed.wait_for(
                lambda: (
                    (len(self.entries), self.distrusted, self.blocked)
                    == (entries, distrusted, blocked)
                ),
                10,
            ), (self.entries[:10], self.distrusted, self.blocked)


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    yield kernel
    kernel.gate.set()


@pytest.fixture
def cache(kernel: Kernel) -> Iterator[KernelCache]:
    cache = KernelCache(kernel.invalidate_entry, kernel.distrust_all)
    cache.start()
    yield cache
    cache.stop()


def test_names_in_order_and_errors_end_nothing(kernel: Kernel, cache: KernelCache) -> None:
    names = [(1, b"a"), (1, b"unknown"), (1, b"b"), (1, b"a")]
    cache.invalidate(names, False)
    kernel.wait(4)
    assert kernel.entries == names


def test_a_directory_that_hangs_holds_up_its_own_names_alone(
    kernel: Kernel, cache: KernelCache
) -> None:
    kernel.hanging = {1}
    cache.invalidate([(1, b"first"), (2, b"a"), (1, b"second")], False)
    cache.invalidate([(1, b"third")], False)
    cache.invalidate([(3, b"b")], False)
    kernel.wait(2, blocked=1)
    assert sorted(kernel.entries) == [(2, b"a"), (3, b"b")]
    kernel.gate.set()
    kernel.wait(5, blocked=3)
    assert kernel.entries[2:] == [(1, b"first"), (1, b"second"), (1, b"third")]


def test_names_wait_while_too_many_directories_hang(kernel: Kernel, cache: KernelCache) -> None:
    kernel.hanging = set(range(1, THREADS + 1))
    cache.invalidate([(parent, b"a") for parent in kernel.hanging], False)
    kernel.wait(0, blocked=THREADS)
    cache.invalidate([(100, b"b")], False)
    kernel.gate.set()
    kernel.wait(THREADS + 1, blocked=THREADS)


def test_the_caller_never_waits_and_too_much_becomes_everything(
    kernel: Kernel, cache: KernelCache
) -> None:
    kernel.hanging = {1}
    cache.invalidate([(1, b"first")], False)
    kernel.wait(0, blocked=1)
    cache.invalidate([(1, b"%d" % number) for number in range(MAX_WAITING + 1)], False)
    kernel.wait(0, distrusted=1, blocked=1)
    cache.invalidate([(1, b"last")], False)
    kernel.gate.set()
    kernel.wait(2, distrusted=1, blocked=2)
    assert kernel.entries == [(1, b"first"), (1, b"last")]


def test_an_old_kernel_gets_the_names_one_by_one(kernel: Kernel, cache: KernelCache) -> None:
    kernel.can_distrust = False
    cache.invalidate([(1, b"a"), (1, b"b")], True)
    kernel.wait(2, distrusted=1)
