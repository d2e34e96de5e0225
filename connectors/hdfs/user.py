"""The user towards HDFS without Kerberos: `HADOOP_USER_NAME` of this process.

hdfs-native reads that variable whenever it connects, also when it connects again. So all sources of
one process have the same user, which is set before the first client exists.
"""

from __future__ import annotations

import os
import pwd
import threading
from typing import Final

from cachefs.core.errors import BadConfig

VARIABLE: Final = "HADOOP_USER_NAME"
_lock: Final = threading.Lock()
_assumed: list[str] = []  # at most one name: the environment belongs to the process


def assume_user(wanted: str) -> None:
    """Makes this process the user `wanted` towards HDFS; "": the user that it is already. Raises
    BadConfig if a source of this process has another user."""
    with _lock:
        user = wanted or os.environ.get(VARIABLE) or _login()
        if not _assumed:
            os.environ[VARIABLE] = user
            _assumed.append(user)
        elif _assumed[0] != user:
            raise BadConfig(
                f"this process reads HDFS as the user {_assumed[0]}, not {user}",
                remedy="give all hdfs:// sources of a process the same option user",
            )


def _login() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
