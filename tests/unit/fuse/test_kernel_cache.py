"""Invalidations reach the kernel in order, from their own thread, bounded."""

from __future__ import annotations

import threading

from cachefs.fuse.kernel_cache import MAX_WAITING, KernelCache


class Kernel:
    def __init__(self, *, can_distrust: bool = True) -> None:
        self.can_distrust = can_distrust
        self.entries: list[tuple[int, bytes]] = []
        self.distrusted = 0
        self.gate = threading.Event()
        self.changed = threading.Condition()

    def invalidate_entry(self, parent: int, name: bytes) -> None:
        assert self.gate.wait(10)
        with self.changed:
            self.entries.append((parent, name))
            self.changed.notify()
        if name == b"unknown":
            raise FileNotFoundError

    def distrust_all(self) -> bool:
        assert self.gate.wait(10)
        with self.changed:
            self.distrusted += 1
            self.changed.notify()
        return self.can_distrust

    def wait(self, entries: int, distrusted: int) -> None:
        with self.changed:
            assert self.changed.wait_for(
                lambda: len(self.entries) == entries and self.distrusted == distrusted, 10
            ), (self.entries, self.distrusted)


def started(kernel: Kernel) -> KernelCache:
    cache = KernelCache(kernel.invalidate_entry, kernel.distrust_all)
    cache.start()
    return cache


def test_names_in_order_and_errors_end_nothing() -> None:
    kernel = Kernel()
    kernel.gate.set()
    cache = started(kernel)
    names = [(1, b"a"), (1, b"unknown"), (2, b"b")]
    cache.invalidate(names, False)
    kernel.wait(3, 0)
    assert kernel.entries == names
    cache.stop()


def test_the_caller_never_waits_and_too_much_becomes_everything() -> None:
    kernel = Kernel()
    cache = started(kernel)
    cache.invalidate([(1, b"first")], False)
    for number in range(MAX_WAITING // 100 + 2):
        cache.invalidate([(2, b"%d" % (100 * number + n)) for n in range(100)], False)
    kernel.gate.set()
    with kernel.changed:
        assert kernel.changed.wait_for(lambda: kernel.distrusted == 1, 10)
    cache.stop()
    assert len(kernel.entries) <= 1


def test_an_old_kernel_gets_the_names_one_by_one() -> None:
    kernel = Kernel(can_distrust=False)
    kernel.gate.set()
    cache = started(kernel)
    cache.invalidate([(1, b"a"), (1, b"b")], True)
    kernel.wait(2, 1)
    cache.stop()
