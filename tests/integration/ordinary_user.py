"""A mount by a user who is not root, from its beginning to its end; prints what was seen as JSON.

    python -I ordinary_user.py CACHEFS SOURCE MOUNTPOINT HOME NAME...

Run as that user, with the permission to read what leads to the interpreter and none other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any


def main() -> int:
    program, source, where, home, *names = sys.argv[1:]
    environment = {"PATH": os.environ["PATH"], "HOME": home, "LC_ALL": "C.UTF-8"}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [program, *arguments], env=environment, capture_output=True, text=True, timeout=60
        )
        return done.stdout if done.returncode == 0 else sys.exit(done.stdout + done.stderr)

    def status() -> dict[str, Any]:
        tree: dict[str, Any] = json.loads(run("status", "--json", where))
        return tree

    def client() -> int:
        found = [p["pid"] for p in status()["processes"] if p["role"] == "client"]
        return found[0] if found else 0

    def sizes() -> list[int]:
        return [sum((Path(where) / name).read_bytes()) for name in names]

    run("mount", source, where)
    first = status()
    seen = {"status": first, "before": sizes()}
    old = client()
    with (Path(where) / names[0]).open("rb", buffering=0) as file:
        os.kill(old, signal.SIGKILL)
        seen["after"] = sizes()
        seen["held"] = sum(file.read())
    deadline = time.monotonic() + 20
    while client() in (0, old) and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    seen["replaced"] = client() not in (0, old)
    seen["doctor"] = json.loads(
        subprocess.run(
            [program, "doctor", "--json"], env=environment, capture_output=True, text=True
        ).stdout
    )
    run("umount", where)
    print(json.dumps(seen))
    return 0


if __name__ == "__main__":
    sys.exit(main())
