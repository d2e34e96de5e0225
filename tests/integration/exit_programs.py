"""Programs that end in every way while they use the library, each a function. Their arguments are
its name, the mount, and the state home. The bytes of the file `cold` do not arrive. A program
prints a line before it ends."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
import sys
import threading
from typing import Any

import cachefs
import cachefs.torch as ct
from cachefs.library.tree import Tree

WARM = ("a/0", "a/1")
COLD = "cold"
ASKED_S = 0.3  # after which a request of another thread or process waits at the server


def say(word: str) -> None:
    print(word, flush=True)


def all_closed(tree: Tree, folder: str, home: str) -> None:
    with cachefs.open(f"{folder}/a/0", home=home) as file, tree.open("a/1") as raw:
        assert file.read()
        assert raw.read()
    for one in tree.open_batch(WARM):
        one.close()
    assert all(tree.read_batch(WARM))
    manifest = ct.Manifest(f"{folder}/a", home=home)
    sampler = ct.OrderSampler(manifest)
    assert len([*sampler]) == len(manifest) == len(WARM)
    cachefs.close()
    say("ready")


def all_left_open(tree: Tree, folder: str, home: str) -> None:
    global kept
    manifest = ct.Manifest(f"{folder}/a", home=home)
    turn = iter(ct.OrderSampler(manifest))
    next(turn)
    text = cachefs.open(f"{folder}/a/0", "rt", encoding="latin-1", home=home)
    text.readline()
    half = tree.open("big")
    half.pread(10, 0)
    cycle: list[Any] = [tree.open("big")]
    cycle[0].pread(10, 1 << 20)
    cycle.append(cycle)
    kept = [  # type: ignore[name-defined]  # until the exit
        tree.open_batch(WARM),
        tree.open("a/0").view(),
        manifest,
        turn,
        text,
        half,
        cycle,
    ]
    say("ready")


def in_a_call(tree: Tree, daemon: bool) -> threading.Thread:
    thread = threading.Thread(target=tree.read, args=(COLD,), daemon=daemon)
    thread.start()
    thread.join(ASKED_S)
    assert thread.is_alive()
    return thread


def daemon_threads_in_calls(tree: Tree, folder: str, home: str) -> None:
    assert all(tree.read_batch(WARM))
    for _ in range(4):
        in_a_call(tree, daemon=True)
    say("ready")


def daemon_threads_that_read(tree: Tree, folder: str, home: str) -> None:
    def keep_reading() -> None:
        while True:
            tree.read_batch(WARM)

    for _ in range(4):
        threading.Thread(target=keep_reading, daemon=True).start()
    assert all(tree.read_batch(WARM))
    say("ready")


def a_pool_in_calls(tree: Tree, folder: str, home: str) -> None:
    """Python waits for the threads of pools, so the program ends when the bytes have arrived."""
    pool = concurrent.futures.ThreadPoolExecutor(2)
    wanted = [pool.submit(tree.read, COLD) for _ in range(2)]
    concurrent.futures.wait(wanted, ASKED_S)
    say("ready")


def interrupted(tree: Tree, folder: str, home: str) -> None:
    """The parent sends SIGINT."""
    say("ready")
    tree.read(COLD)


def interrupted_and_read_on(tree: Tree, folder: str, home: str) -> None:
    say("ready")
    try:
        tree.read(COLD)
    except KeyboardInterrupt:
        assert all(tree.read_batch(WARM))


def an_error_in_a_batch(tree: Tree, folder: str, home: str) -> None:
    files = tree.open_batch(WARM)
    say("ready")
    raise SystemExit(0 if files else 1)


def a_fork_that_exits(tree: Tree, folder: str, home: str) -> None:
    """The child runs what is registered for the end of a process; the parent reads on."""
    half = tree.open("big")
    assert half.pread(10, 0)
    if os.fork() == 0:
        assert half.pread(10, 1 << 20)
        assert all(tree.read_batch(WARM))
        sys.exit(0)
    assert os.wait()[1] == 0
    assert half.pread(10, 2 << 20)
    half.close()
    assert all(tree.read_batch(WARM))
    say("ready")


def read_warm(tree: Tree) -> int:
    return sum(map(len, tree.read_batch(WARM)))


def read_cold(tree: Tree) -> None:
    tree.read(COLD)


def children(how: str, tree: Tree) -> None:
    context: Any = multiprocessing.get_context(how)
    with context.Pool(2) as pool:
        assert all(pool.map(read_warm, [tree] * 8))
    assert all(tree.read_batch(WARM))
    daemon = context.Process(target=read_cold, args=(tree,), daemon=True)
    daemon.start()
    daemon.join(ASKED_S)
    say("ready")  # multiprocessing terminates the child, which is in a call


def children_by_fork(tree: Tree, folder: str, home: str) -> None:
    assert all(tree.read_batch(WARM))
    children("fork", tree)


def children_by_spawn(tree: Tree, folder: str, home: str) -> None:
    children("spawn", tree)


def children_by_forkserver(tree: Tree, folder: str, home: str) -> None:
    children("forkserver", tree)


def a_stopped_server(tree: Tree, folder: str, home: str) -> None:
    """The parent has stopped the server when the program goes on."""
    files = [tree.open("big") for _ in range(4)]
    assert all(file.pread(10, 0) for file in files)
    assert all(tree.read_batch(WARM))
    say("stop")
    sys.stdin.readline()
    say("ready")


def main() -> None:
    name, folder, home = sys.argv[1:]
    tree = cachefs.tree(folder, home=home)
    globals()[name](tree, folder, home)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
