"""A program that reads files relative to a directory that it holds: `dir_reader.py KIND DIR STOP`,
KIND `fd` (a descriptor) or `cwd` (the working directory). A file `fN` holds the text `xN`. Prints
`reading` after its first round and, when STOP exists, how many rounds were right."""

from __future__ import annotations

import os
import sys


def main(kind: str, directory: str, stop: str) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    names = os.listdir(fd)
    if kind == "cwd":
        os.chdir(directory)
    rounds = 0
    while not os.path.exists(stop):
        for name in names:
            file = os.open(name, os.O_RDONLY, dir_fd=None if kind == "cwd" else fd)
            text = os.read(file, 100)
            os.close(file)
            if text != b"x" + name[1:].encode():
                raise SystemExit(f"{name} has {text!r}")
        rounds += 1
        if rounds == 1:
            print("reading", flush=True)
    print(rounds, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
