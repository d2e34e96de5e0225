"""The owners of mounts, and the state homes that have their records; root finds all users'."""

from __future__ import annotations

import os
import pwd
from typing import NamedTuple

import msgspec

from cachefs.core.config import Config
from cachefs.core.errors import AccessDenied
from cachefs.core.mountinfo import Mount
from cachefs.launcher.process_watch import is_of_user
from cachefs.launcher.state import MountRecord, StateHome

_CACHE_HOME = os.path.join(".cache", "cachefs")


class Recorded(NamedTuple):
    """A mount's record, and the state home that has it."""

    record: MountRecord
    home: StateHome


def find_record_and_home(mount: Mount, home: StateHome) -> Recorded | None:
    """Returns the record in `home`. Root also finds the record in the default state home of the
    mount's owner. Returns None if neither has one."""
    for one in (home, *_homes_of_owner(mount)):
        record = one.find_mount(mount.mountpoint)
        if record is not None and _is_owners(record, one):
            return Recorded(_with_own_processes(record), one)
    return None


def _with_own_processes(record: MountRecord) -> MountRecord:
    """Returns the record with each pid set to 0 that is not a process of the record's owner. Root
    would otherwise wait for a foreign process, or recommend to end it."""
    if record.owner < 0:
        return record
    pids = [pid if is_of_user(pid, record.owner) else 0 for pid in (record.pid, record.supervisor)]
    return msgspec.structs.replace(record, pid=pids[0], supervisor=pids[1])


def find_record(mount: Mount, home: StateHome) -> MountRecord | None:
    """Returns the record of `find_record_and_home`."""
    found = find_record_and_home(mount, home)
    return None if found is None else found.record


def all_records(mounts: list[Mount], home: StateHome) -> list[MountRecord]:
    """Returns the records of those mounts that have one."""
    found = (find_record(mount, home) for mount in mounts)
    return [record for record in found if record is not None]


def check_master(record: MountRecord, chosen: Config) -> None:
    """Raises AccessDenied if the settings' token would be sent to a master that only another user's
    record names: that user may listen there."""
    if record.owner < 0 or chosen.text("master") or not chosen.text("token_file"):
        return
    owner = shown_user(record.owner)
    raise AccessDenied(
        f"the record of user {owner} names the master of this mount: the token is not sent to it",
        path=record.mountpoint,
        remedy="give --master with the URL of the cluster's master",
    )


def shown_user(uid: int) -> str:
    """Returns the name of a user, or the uid if it has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _homes_of_owner(mount: Mount) -> list[StateHome]:
    if os.geteuid() != 0 or mount.owner_uid <= 0:
        return []
    try:
        directory = pwd.getpwuid(mount.owner_uid).pw_dir
    except KeyError:
        return []
    home = StateHome(os.path.join(directory, _CACHE_HOME))
    return [home] if home.owner == mount.owner_uid else []


def _is_owners(record: MountRecord, home: StateHome) -> bool:
    """Returns False for a record of another user whose socket belongs to a third user."""
    if home.owner == os.geteuid():
        return True
    try:
        return os.stat(record.socket).st_uid == home.owner
    except OSError:
        return True  # no server listens there
