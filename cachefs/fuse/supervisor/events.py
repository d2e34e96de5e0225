"""The events and actions of `cachefs.fuse.supervisor.state`."""

from __future__ import annotations

import msgspec

from cachefs.core.messages import Failure

# ---- events --------------------------------------------------------------------------------------


class Begin(msgspec.Struct, frozen=True):
    """A new mount."""


class Started(msgspec.Struct, frozen=True):
    """A client's process was started."""

    pid: int


class NotStarted(msgspec.Struct, frozen=True):
    """The process could not be started."""

    cause: str


class ClientReady(msgspec.Struct, frozen=True):
    pid: int
    warning: str = ""


class ClientFailed(msgspec.Struct, frozen=True):
    """A client reports that it cannot serve."""

    pid: int
    failure: Failure


class Mounted(msgspec.Struct, frozen=True):
    """The attempt to mount has ended. `failure`: None if it succeeded."""

    failure: Failure | None = None


class ClientServing(msgspec.Struct, frozen=True):
    pid: int


class ClientBeat(msgspec.Struct, frozen=True):
    pid: int


class ClientRetired(msgspec.Struct, frozen=True):
    pid: int


class Ended(msgspec.Struct, frozen=True):
    """A client ended. `clean`: because the mount had ended. `killed`: by SIGKILL, or with an
    unknown exit status."""

    pid: int
    clean: bool
    killed: bool = False


class StopRequested(msgspec.Struct, frozen=True):
    """A signal requests the end of the mount."""


class UpgradeRequested(msgspec.Struct, frozen=True):
    """The command line requests an upgrade; the shell knows the interpreter."""


class Claimed(msgspec.Struct, frozen=True):
    """The attempt to claim a held mount has ended. `exists`: False if its mount has ended."""

    exists: bool = True


class HandOver(msgspec.Struct, frozen=True):
    """Another process has claimed the held mount."""


class OverBudget(msgspec.Struct, frozen=True):
    """The serving client uses more memory than its budget."""

    pid: int


class Tick(msgspec.Struct, frozen=True):
    """Time passed."""


# ---- actions -------------------------------------------------------------------------------------


class Start(msgspec.Struct, frozen=True):
    """Start a client; `upgrade`: of the requested version."""

    upgrade: bool = False


class Mount(msgspec.Struct, frozen=True):
    """Mount, answer INIT, create the table."""


class Claim(msgspec.Struct, frozen=True):
    """Claim the held mount."""


class SendServe(msgspec.Struct, frozen=True):
    pid: int
    takeover: bool


class SendRetire(msgspec.Struct, frozen=True):
    pid: int


class DumpStacks(msgspec.Struct, frozen=True):
    pid: int


class Kill(msgspec.Struct, frozen=True):
    pid: int


class Terminate(msgspec.Struct, frozen=True):
    """Send SIGTERM: the client unmounts and ends."""

    pid: int


class AnnounceStarted(msgspec.Struct, frozen=True):
    pid: int
    warning: str


class AnnounceFailed(msgspec.Struct, frozen=True):
    failure: Failure


class AnnounceUpgraded(msgspec.Struct, frozen=True):
    pid: int
    failure: Failure | None


class NoteFailure(msgspec.Struct, frozen=True):
    """Note why a client cannot serve the held mount; None: a client serves it."""

    failure: Failure | None


class GiveUp(msgspec.Struct, frozen=True):
    """Unmount, unless the mount is held, and close every descriptor."""

    cause: str


class Finish(msgspec.Struct, frozen=True):
    code: int


class Leave(msgspec.Struct, frozen=True):
    """End without touching the client `pid`, which starts another supervisor."""

    pid: int


Event = (
    Begin | Started | NotStarted | ClientReady | ClientFailed | Mounted | ClientServing | ClientBeat
    | ClientRetired | Ended | StopRequested | UpgradeRequested | Claimed | HandOver | OverBudget
    | Tick
)  # fmt: skip
Action = (
    Start | Mount | Claim | SendServe | SendRetire | DumpStacks | Kill | Terminate | AnnounceStarted
    | AnnounceFailed | AnnounceUpgraded | NoteFailure | GiveUp | Finish | Leave
)  # fmt: skip
