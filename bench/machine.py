"""Kernel figures: CPU and memory of processes, caches to drop, a description of the machine."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from tests.services.processes import families, stat_fields

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
MIB = 1 << 20


def cpu_s(pids: Iterable[int]) -> float:
    """Returns the user and system time of these processes and their descendants, in seconds."""
    total_ticks = 0
    for pid in families(pids):
        try:
            total_ticks += sum(int(field) for field in stat_fields(pid)[11:15])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total_ticks * TICK_S


def rss_anon_bytes(pid: int) -> int:
    """Returns the anonymous memory of the process, in bytes. Raises FileNotFoundError."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else 0


def drop_caches(*, dentries: bool) -> None:
    """Drops the page cache (tmpfs keeps its data), and with `dentries` names and inodes. Pages that
    are not written back stay: mounts read only, and all else of a bench is in tmpfs."""
    Path("/proc/sys/vm/drop_caches").write_text("3" if dentries else "1")


def mounted(path: Path) -> bool:
    """Returns whether `path` is a mount point, without touching it: a dead mount would block."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return any(line.split()[4] == str(path) for line in lines)


def mounts_below(root: Path) -> list[Path]:
    """Returns the mount points at or under `root`, the deepest first."""
    paths = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return sorted((Path(p) for p in paths if Path(p).is_relative_to(root)), reverse=True)


def orphans_of(root: Path) -> list[int]:
    """Returns the processes without a parent whose arguments have a path below `root`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if stat_fields(int(entry.name))[1] == "1" and any(
                Path(word).is_relative_to(root) for word in arguments if word
            ):
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def describe() -> str:
    """Returns CPU, memory and kernel, in one line."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*: (.*)", cpuinfo)
    meminfo = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    memory_gib = int(meminfo[1]) / MIB if meminfo else 0
    system = re.search(r'PRETTY_NAME="(.*)"', Path("/etc/os-release").read_text())
    whose = "the distribution's" if sys.base_prefix == "/usr" else "another build"
    return (
        f"{os.cpu_count()} CPUs ({model[1] if model else platform.machine()}), "
        f"{memory_gib:.0f} GiB of memory, Linux {platform.release().split('-')[0]}, "
        f"{system[1] if system else 'unknown system'}, Python {platform.python_version()} "
        f"({whose}); "
        "origin, caches and all processes share these CPUs; data and caches on tmpfs"
    )


def now() -> str:
    """Returns the time, the load and the revision of the code, in one line."""
    git = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(git, cwd=Path(__file__).parent, capture_output=True, text=True)
    revision = done.stdout.strip() or "unknown"
    clock = time.strftime("%Y-%m-%d %H:%M")
    return f"{clock}, load average {os.getloadavg()[0]:.1f}, revision {revision}"
