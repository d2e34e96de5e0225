"""A process is not taken for another one that had its pid."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

from cachefs.core.model import UfsSpec
from cachefs.launcher.local import LocalProcess
from cachefs.launcher.process_watch import ProcessId, Watch, birth_of
from cachefs.launcher.state import MountRecord, Pointer

_PROGRAM = "import sys; print(flush=True); sys.stdin.read()"


@contextlib.contextmanager
def process_of_cachefs() -> Iterator[subprocess.Popen[bytes]]:
    """Runs a process with our title during the block."""
    command = [sys.executable, "-c", _PROGRAM, "cachefs"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # its title is readable
            yield process
        finally:
            process.kill()


def test_only_the_process_that_was_born_then_is_meant() -> None:
    with process_of_cachefs() as process:
        assert ProcessId(process.pid).lives()
        assert ProcessId(process.pid, birth_of(process.pid)).lives()
        assert not ProcessId(process.pid, birth_of(os.getpid())).lives()
    assert birth_of(process.pid) == ""


def test_a_thread_is_not_the_process_that_had_its_number() -> None:
    held = threading.Event()
    thread = threading.Thread(target=held.wait)
    thread.start()
    try:
        assert not ProcessId(thread.native_id or 0, "another boot:1").lives()
    finally:
        held.set()
        thread.join()


def test_records_of_ended_processes_name_no_process() -> None:
    before = birth_of(os.getpid())
    with process_of_cachefs() as process:
        pid = process.pid
        record = MountRecord("/mnt", UfsSpec("s3://b"), pid, "/s", 60.0, True, pid, before, before)
        assert not record.is_served()
        assert not LocalProcess("worker-0", "", pid, before).runs
        with Watch(record.client_process) as watch:
            watch.signal(signal.SIGKILL)
            assert watch.ended(0.0)
        assert process.poll() is None


def test_a_pointer_has_the_birth_of_its_process() -> None:
    pointer = Pointer.of_this_process("/s", stays=True, url="http://h:1")
    assert pointer == Pointer("/s", os.getpid(), True, "http://h:1", birth_of(os.getpid()))
