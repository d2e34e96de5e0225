"""`cachefs doctor`: checks whether this machine can mount, and what crashes left behind."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from cachefs.cli import clusters, detach, output, settings, transport
from cachefs.cli.commands.health import no_answer, of_mount_tree
from cachefs.cli.commands.status import ask
from cachefs.cli.masters import Masters
from cachefs.cli.mountpoint import (
    DEV_FUSE,
    FUSE_CONF,
    clear_dead,
    is_unserved,
    may_clear_mount,
    user_allow_other,
)
from cachefs.cli.owners import find_record
from cachefs.core.config import Config
from cachefs.core.errors import CacheFSError
from cachefs.core.health import HealthProblem, Severity, facts_of
from cachefs.core.install import install_command
from cachefs.core.mountinfo import Mount, Mounts, read_mounts
from cachefs.core.printable import printable
from cachefs.fuse.file_systems import file_system_of
from cachefs.fuse.supervisor.upgrades import is_listening
from cachefs.launcher.cluster import CLUSTER_MODULES
from cachefs.launcher.state import MountRecord, StateHome, private_dir, read_pointer, remove_pointer

EXTRAS: Final = {
    "cluster": CLUSTER_MODULES,
    "pyfuse3": ("pyfuse3",),
    "s3": ("boto3", "pycurl"),
}


class CheckResult(msgspec.Struct, frozen=True):
    """One check. `state` is ok, note (works, could be better), problem, or fixed."""

    name: str
    state: str
    detail: str
    remedy: str = ""


@click.command("doctor")
@click.option("--fix", is_flag=True, help="Clear dead mounts and stale records.")
@settings.command_options("doctor")
def command(fix: bool, as_json: bool, chosen: Config) -> int:
    """Check this machine and the state home; exit code 1 if anything needs repair.

    \b
    cachefs doctor
    cachefs doctor --fix
    """
    home = settings.state_home(chosen)
    masters = Masters(chosen)
    findings = [
        *examine_machine(chosen),
        *examine_state(masters, home, fix=fix),
        *examine_cluster(chosen, masters),
    ]
    if as_json:
        output.print_json([msgspec.to_builtins(finding) for finding in findings])
    else:
        for line in output.columns([_row(finding) for finding in findings]):
            click.echo(printable(line))
    return 1 if any(finding.state == "problem" for finding in findings) else 0


def _row(finding: CheckResult) -> list[str]:
    remedy = f"; {finding.remedy}" if finding.remedy else ""
    return [finding.state, finding.name, finding.detail + remedy]


def examine_machine(chosen: Config) -> Iterator[CheckResult]:
    """Checks the device, the helper program, extras, system configuration, kernel and transport."""
    yield _device()
    yield _fusermount()
    for extra, modules in EXTRAS.items():
        yield check_extra(extra, modules, importlib.util.find_spec)
    yield _allow_other()
    yield check_kernel(platform.release())
    yield check_transport(
        chosen.text("transport"), chosen.text("passthrough"), transport.Machine.here()
    )
    cache_dir = chosen.text("cache_dir") or str(settings.state_home(chosen).path)
    yield from check_stacking(cache_dir, file_system_at(cache_dir))


def _device() -> CheckResult:
    if not os.path.exists(DEV_FUSE):
        return CheckResult(DEV_FUSE, "problem", "missing", "load it: modprobe fuse")
    if not os.access(DEV_FUSE, os.R_OK | os.W_OK):
        return CheckResult(DEV_FUSE, "problem", "you may not open it", "chmod 666 /dev/fuse")
    return CheckResult(DEV_FUSE, "ok", "present")


def _fusermount() -> CheckResult:
    program = shutil.which(detach.FUSERMOUNT)
    if program is not None:
        return CheckResult(detach.FUSERMOUNT, "ok", program)
    state = "note" if os.geteuid() == 0 else "problem"
    remedy = "users other than root need it: install the system package fuse3"
    return CheckResult(detach.FUSERMOUNT, state, "missing", remedy)


def check_extra(
    extra: str, modules: tuple[str, ...], find: Callable[[str], object | None]
) -> CheckResult:
    """Returns whether an optional part of the installation is present."""
    missing = [name for name in modules if find(name) is None]
    if not missing:
        return CheckResult(f"extra {extra}", "ok", "installed")
    remedy = install_command(extra)
    return CheckResult(f"extra {extra}", "note", f"not installed: {', '.join(missing)}", remedy)


def _allow_other() -> CheckResult:
    if user_allow_other():
        return CheckResult("user_allow_other", "ok", f"set in {FUSE_CONF}")
    remedy = f"for --allow-other as an ordinary user, add it to {FUSE_CONF}"
    return CheckResult("user_allow_other", "note", "not set; root does not need it", remedy)


def check_kernel(release: str) -> CheckResult:
    """Returns whether the kernel supports all features of a mount."""
    if transport.kernel_version(release) >= transport.PASSTHROUGH_KERNEL:
        return CheckResult("kernel", "ok", release)
    remedy = "from Linux 6.9 on a mount outlives its client, and the kernel reads cached files"
    return CheckResult("kernel", "note", release, remedy)


def check_transport(wanted: str, passthrough: str, machine: transport.Machine) -> CheckResult:
    """Returns the transport of the next mount, and the reason against a better one."""
    try:
        choice = transport.choose(wanted, passthrough, machine)
    except CacheFSError as err:
        return CheckResult("transport", "problem", err.cause, err.remedy)
    state = "note" if choice.why_not_better else "ok"
    return CheckResult("transport", state, f"{wanted} takes {choice}", choice.why_not_better)


def check_stacking(cache_dir: str, file_system: str) -> Iterator[CheckResult]:
    """Yields a note if the file system of a cache directory may prevent passthrough."""
    if file_system == "overlay":
        remedy = "on one overlayfs over another there is no passthrough: use --cache-dir elsewhere"
        yield CheckResult("cache directory", "note", f"{cache_dir} is on overlayfs", remedy)


def file_system_at(path: str) -> str:
    """Returns the type of the file system that a directory is, or will be, on; "" if unknown."""
    while not os.path.exists(path) and path != "/":
        path = os.path.dirname(path)
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return file_system_of(fd)
    finally:
        os.close(fd)


def examine_state(masters: Masters, home: StateHome, *, fix: bool) -> Iterator[CheckResult]:
    """Checks the state home, mounts, and the records, sockets and pointers of ended processes."""
    yield _home(home)
    table = read_mounts()
    for mount in table.ours():
        yield from _mount(mount, masters, home, fix)
    for record in home.mount_records():
        if is_stale(record, table):
            yield _stale_record(record, home, fix)
    for path in home.control_sockets():
        if not is_listening(str(path)):
            yield _stale_socket(path, fix)
    for directory in home.server_dirs():
        yield from _pointer(directory, fix)


def _mount(mount: Mount, masters: Masters, home: StateHome, fix: bool) -> Iterator[CheckResult]:
    name = f"mount {mount.mountpoint}"
    if is_unserved(mount.mountpoint, find_record(mount, home)):
        yield _dead_mount(name, mount, home, fix)
        return
    record = find_record(mount, home)
    if record is None:
        yield CheckResult(name, "ok", f"{mount.source}; its record is not in this state home")
        return
    try:
        status = ask(record)
        found = of_mount_tree(record, status, masters)
    except CacheFSError as err:
        yield CheckResult(name, "ok", mount.source)
        yield health_finding(no_answer(record, err))
        return
    yield mount_finding(name, mount.source, status)
    for tier in facts_of(status).cache.tiers:
        if tier.state == "normal":
            yield CheckResult(f"cache {tier.path}", "ok", "in service")
    yield from map(health_finding, found)


def examine_cluster(chosen: Config, masters: Masters) -> Iterator[CheckResult]:
    """Yields the problems that the configured master, or that of `cachefs up`, reports."""
    if not clusters.is_cluster_configured(chosen):
        return
    name = f"cluster {clusters.master_of(chosen)}"
    try:
        with clusters.connect_admin(chosen) as master:
            found = masters.problems(master)
    except CacheFSError as err:
        yield CheckResult(name, "note", err.one_line())
        return
    if not found:
        yield CheckResult(name, "ok", "nothing is wrong")
    yield from map(health_finding, found)


def _dead_mount(name: str, mount: Mount, home: StateHome, fix: bool) -> CheckResult:
    detail = "dead: its process has ended"
    if not may_clear_mount(mount):
        return CheckResult(name, "problem", detail, "unmount it as its owner, or as root")
    return _left(name, "problem", detail, fix, lambda: clear_dead(mount.mountpoint, home))


def mount_finding(name: str, source: str, status: dict[str, Any]) -> CheckResult:
    """Returns a mount whose server answers, and its transport."""
    kind, passthrough = status.get("transport", ""), str(status.get("passthrough", ""))
    detail = f"{source}, transport {kind}" if kind else source
    if not passthrough:
        return CheckResult(name, "ok", detail)
    state = "ok" if passthrough == "yes" else "note"
    return CheckResult(name, state, f"{detail}, passthrough: {passthrough}")


def health_finding(problem: HealthProblem) -> CheckResult:
    """Returns a problem of `cachefs health` as a row of the doctor."""
    state = "problem" if problem.severity == Severity.ERROR else "note"
    detail = f"{problem.subject}: {problem.cause}"
    return CheckResult(problem.code, state, detail, problem.remedy)


def _stale_record(record: MountRecord, home: StateHome, fix: bool) -> CheckResult:
    name, detail = f"record of {record.mountpoint}", f"its client (pid {record.pid}) has ended"
    return _left(
        name, "note", detail, fix, lambda: home.remove_mount(record.mountpoint, record.pid)
    )


def _stale_socket(path: Path, fix: bool) -> CheckResult:
    detail = "its supervisor has ended"
    return _left(f"socket {path.name}", "note", detail, fix, lambda: _unlink(path))


def _home(home: StateHome) -> CheckResult:
    if not home.path.exists():
        return CheckResult("state home", "ok", f"{home.path} (made by the first mount)")
    try:
        private_dir(home.path)
    except CacheFSError as err:
        return CheckResult("state home", "problem", err.one_line())
    return CheckResult("state home", "ok", str(home.path))


def is_stale(record: MountRecord, table: Mounts) -> bool:
    """Returns whether a record is neither mounted nor held by a living process."""
    mount = table.at(record.mountpoint)
    return (mount is None or not mount.is_cachefs) and not record.is_served()


def _pointer(directory: Path, fix: bool) -> Iterator[CheckResult]:
    pointer = read_pointer(directory)
    if pointer is not None and not pointer.process.lives():
        name, detail = f"server of {directory.name}", f"pid {pointer.pid} has ended"
        yield _left(name, "note", detail, fix, lambda: remove_pointer(directory, pointer.pid))


def _unlink(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def _left(
    name: str, state: str, detail: str, fix: bool, clear: Callable[[], object]
) -> CheckResult:
    if not fix:
        return CheckResult(name, state, detail, "cachefs doctor --fix clears it")
    try:
        clear()
    except (CacheFSError, OSError) as err:
        cause = err.one_line() if isinstance(err, CacheFSError) else err.strerror
        return CheckResult(name, "problem", f"{detail}; {cause}")
    return CheckResult(name, "fixed", detail)
