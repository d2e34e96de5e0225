"""`python -I -m cachefs.kube`: the controller as a process, an `OperatorSpec` on standard input."""

from __future__ import annotations

import asyncio
import sys
import traceback
from typing import NoReturn

import msgspec

from cachefs.core.errors import CacheFSError
from cachefs.kube.process import Process
from cachefs.kube.spec import OperatorSpec
from cachefs.launcher.logs import log_to
from cachefs.launcher.serving import quit_now


def main() -> NoReturn:
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=OperatorSpec)
    log_to("", spec.log_level, to_stderr=True, as_json=spec.log_json)
    code = 1
    try:
        code = asyncio.run(Process(spec).run())
    except CacheFSError as err:
        print(f"cachefs: {err.one_line()}", file=sys.stderr)
    finally:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        quit_now(code)  # a normal exit would wait for calls of the master


if __name__ == "__main__":
    main()
