"""The demo of training: PyTorch on the images of a bucket that is 20 ms away, with and without the
lines of CacheFS, killed in the middle of an epoch and resumed; then a user who is not root reads
the same images by pandas, without a mount.

The torch of `scripts/torch-venv` runs `demo.trainer`. A proxy adds the latency and TLS, and counts
what the origin sends.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import xxhash

from demo.console import cachefs, expect, say, short
from demo.dataset import CLASSES, IMAGE_BYTES
from demo.runner import run
from demo.sandbox import Sandbox
from demo.servers import BUCKET, PREFIX, SOURCE, find_versitygw, make_certificate, upload
from tests.services.proxy import FaultProxy
from tests.services.versitygw import versitygw

ROOT: Final = Path(__file__).resolve().parent.parent
IMAGES: Final = 1200
LATENCY_S: Final = 0.02
TRAINER_LIMIT_S: Final = 100.0
SEED: Final = 20
NOBODY: Final = 65534
WIDTH: Final = 44
EVERY: Final = 8  # bytes values that are rare in the images of one class


class LabelledImages(NamedTuple):
    """Image-sized files in class folders below `root`, and labels.csv. `files`: names."""

    root: Path
    files: tuple[str, ...]
    size_bytes: int  # of the images


def make_images(root: Path, count: int) -> LabelledImages:
    """Writes the files: always the same bytes. Some values are rare in the images of a class."""
    rng = random.Random(SEED)
    names, rows, size_bytes = [], ["image,label,xxh3"], 0
    for number in range(count):
        label = rng.randrange(len(CLASSES))
        name = f"images/{CLASSES[label]}/{number:05}.jpg"
        data = rng.randbytes(rng.randrange(IMAGE_BYTES * 4 // 5, IMAGE_BYTES * 6 // 5))
        data = data.translate(bytes(value ^ (value % EVERY == label) for value in range(256)))
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
        names.append(name)
        rows.append(f"{name},{CLASSES[label]},{xxhash.xxh3_128_hexdigest(data)}")
        size_bytes += len(data)
    (root / "labels.csv").write_text("\n".join(rows) + "\n")
    return LabelledImages(root, (*names, "labels.csv"), size_bytes)


class TrainDemo:
    """The steps, in order."""

    def __init__(self, box: Sandbox, data: LabelledImages, proxy: FaultProxy, torch: str) -> None:
        self.box = box
        self.data = data
        self.proxy = proxy
        self.torch = torch
        self.images = len(data.files) - 1
        self._counted = proxy.counters().object_bytes

    def mount(self) -> None:
        flags = ("--endpoint-url", self.proxy.endpoint_url, "--cache-dir", str(self.box.cache))
        cachefs("mount", SOURCE, str(self.box.mountpoint), *flags, "--cache-size", "1GiB")

    def free(self) -> None:
        """Makes the cache cold; names stay."""
        cachefs("free", str(self.box.mountpoint / "images"), quiet=True)
        self.origin_bytes()

    def origin_bytes(self) -> int:
        """Returns the bytes of objects that the origin sent since the previous call."""
        before, self._counted = self._counted, self.proxy.counters().object_bytes
        return self._counted - before

    # ---- training ----

    def start(self, name: str, *flags: str) -> subprocess.Popen[str]:
        """Starts the training program, with the directory `name` for its checkpoints."""
        run = str(self.box.folder / name)
        command = ["-m", "demo.trainer", str(self.box.mountpoint / "images"), run, *flags]
        say(short(f"\n$ python {' '.join(command)}"))
        with open(f"{run}.log", "w") as log:
            return subprocess.Popen(
                [self.torch, *command],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def finish(self, name: str, *flags: str) -> list[str]:
        """Runs the training program to its end; returns the lines of its output."""
        process = self.start(name, *flags)
        output, _ = process.communicate(timeout=TRAINER_LIMIT_S)
        log = (self.box.folder / f"{name}.log").read_text()
        expect(process.returncode == 0, f"the training program failed: {log[-2000:]}")
        return output.splitlines()

    def compare(self) -> None:
        """Trains cold with torch alone and with the order announced, then once more, warm."""
        (plain,) = map(json.loads, self.finish("plain", "--plain"))
        self.show("PyTorch alone, cold", plain, self.origin_bytes())
        self.free()
        cold, warm = map(json.loads, self.finish("whole", "--epochs", "2"))
        sent = self.origin_bytes()
        self.show("with the order announced, cold", cold, sent)
        self.show("the next epoch, warm", warm)
        rate = plain["seconds"] / cold["seconds"]
        say(f"  {rate:.1f} x the rate, and each byte was sent once: {self.times(sent)}")
        expect(sent == self.data.size_bytes, f"the origin sent {sent} bytes for two epochs")

    def times(self, sent: int) -> str:
        return f"{sent / self.data.size_bytes:.3f} x the images"

    def show(self, title: str, result: dict[str, Any], sent: int | None = None) -> None:
        rate = result["images"] / result["seconds"]
        origin = "" if sent is None else f"{sent / 1e6:10.1f} MB from the origin"
        say(f"{title:{WIDTH}}{rate:9,.0f} images/s  {result['right']:4.0%} right{origin}")

    def kill_and_resume(self) -> None:
        """Kills the training program in the middle of a cold epoch, and starts it again."""
        self.free()
        at = random.Random(SEED).randrange(self.images // 4, self.images * 3 // 4)
        process = self.start("killed", "--dies-at", str(at))
        process.communicate(timeout=TRAINER_LIMIT_S)
        expect(process.returncode == -signal.SIGKILL, "the training program was not killed")
        say(f"  {process.pid} got SIGKILL behind image {at:,}, between a step and its checkpoint")
        resumed, line = self.finish("killed")
        say(resumed)
        sent = self.origin_bytes()
        self.show("the rest of the epoch", json.loads(line), sent)
        expect(sent == self.data.size_bytes, f"the origin sent {sent} bytes for one epoch")
        self.compare_runs()

    def compare_runs(self) -> None:
        """Compares the run that was killed with the one that was not."""
        whole, killed = (
            json.loads((self.box.folder / name / "epoch0.json").read_text())
            for name in ("whole", "killed")
        )
        same = sum(a == b for a, b in zip(whole["seen"], killed["seen"], strict=True))
        expect(same == self.images, f"{same} of {self.images} images are in the same place")
        expect(whole["weights"] == killed["weights"], "the weights differ")
        say(f"  all {same:,} images in the order of the undisturbed run, and the same weights")

    def umount(self) -> None:
        cachefs("umount", str(self.box.mountpoint))
        expect(not self.box.mounts(), "still mounted after umount")

    # ---- a user who is not root ----

    def read_as_nobody(self, trusted: Path | None) -> None:
        """Runs the notebook's program as another user, with a cache of its own."""
        home = self.box.folder / "notebook"
        home.mkdir(mode=0o700)
        os.chown(home, NOBODY, NOBODY)
        self.box.folder.chmod(0o711)
        environment = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home)}
        environment["CACHEFS_ENDPOINT_URL"] = self.proxy.endpoint_url
        if trusted:
            environment["CACHEFS_CA_BUNDLE"] = str(trusted)
        program = ["-m", "demo.notebook", f"cachefs+s3://{BUCKET}/{PREFIX}"]
        say(f"\n$ setpriv --reuid=nobody python {' '.join(program)}   # nothing is mounted")
        started = time.monotonic()
        done = subprocess.run(
            [*as_nobody(), sys.executable, *program],
            cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        expect(done.returncode == 0, f"the notebook failed: {done.stderr[-2000:]}")
        say(f"{done.stdout.rstrip()}\n  ({time.monotonic() - started:.1f} s)")


def as_nobody() -> list[str]:
    """Returns what runs a program as an ordinary user. Where only root may read this checkout, the
    user gets the capability to read it, and none other."""
    command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    starts = (
        f"import subprocess; subprocess.run([{sys.executable!r}, '-c', 'import demo'], check=True)"
    )
    may_read = subprocess.run(
        [*command, sys.executable, "-c", starts], cwd=ROOT, capture_output=True
    )
    if may_read.returncode == 0:
        return command
    only = "-all,+dac_read_search"
    return [*command, f"--inh-caps={only}", f"--ambient-caps={only}"]


def torch_python() -> str:
    """Returns the interpreter that has torch, after it was installed if necessary."""
    done = subprocess.run([ROOT / "scripts/torch-venv"], stdout=subprocess.PIPE, text=True)
    expect(done.returncode == 0, "torch could not be installed")
    return done.stdout.strip()


def play(box: Sandbox, images: int, torch: str) -> None:
    """Runs the whole demo."""
    data = make_images(box.folder / "local", images)
    certificate = make_certificate(box.folder)
    with versitygw(box.folder / "server") as server:
        upload(server, data.root, data.files)
        os.environ.update(server.credentials())
        with FaultProxy(server.endpoint_url, latency_s=LATENCY_S, certificate=certificate) as proxy:
            trusted = trust(box, certificate)
            way = "over TLS, " if certificate else ""
            say(f"A bucket on versitygw, {way}{LATENCY_S * 1e3:.0f} ms away: {images:,} images of"
                f" about 110 KiB.\nD={box.folder} holds all files of this demo.")  # fmt: skip
            demo = TrainDemo(box, data, proxy, torch)
            demo.mount()
            demo.compare()
            demo.kill_and_resume()
            demo.umount()
            demo.read_as_nobody(trusted)


def trust(box: Sandbox, certificate: Path | None) -> Path | None:
    """Makes the programs of the demo trust the certificate; returns it without its key."""
    if certificate is None:
        return None
    _, mark, rest = certificate.read_text().partition("-----BEGIN CERTIFICATE-----")
    path = box.folder / "trusted.pem"
    path.write_text(mark + rest)
    path.chmod(0o644)
    os.environ["AWS_CA_BUNDLE"] = str(path)
    return path


def main(arguments: list[str]) -> int:
    """Runs the demo with some number of images; exit status 1 if a check failed."""
    started = time.monotonic()
    images = int(arguments[0]) if arguments else IMAGES
    if not find_versitygw():
        print("demo failed: versitygw is missing; make train builds it", file=sys.stderr)
        return 1
    torch = torch_python()
    code = run(lambda box: play(box, images, torch))
    if code == 0:
        say(f"\nTook {time.monotonic() - started:.0f} s; nothing is left behind.")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
