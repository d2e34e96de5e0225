"""`python -I -m cachefs.kube.volume_users`: the check before an uninstall of CacheFS.

It fails while pods run with volumes of the driver, or Datasets wait for the controller at their end
(nothing else removes their finalizer), and names them. Otherwise it waits until the drivers have
unmounted all volumes, since nothing unmounts them after that, and checks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from typing import Final

import click

from cachefs.core.errors import CacheFSError, InUse, NotFound
from cachefs.core.units import parse_duration
from cachefs.kube.account import Account
from cachefs.kube.api import KubeApi
from cachefs.kube.names import DRIVER, FINALIZER, Key, key_of
from cachefs.kube.steps import in_words
from cachefs.kube.volumes import claims_of, users_of

SLACK_S: Final = 5.0  # for the unmount itself
EVERYTHING: Final = ""  # as a path: every volume of the driver shows something below it


async def users(api: KubeApi, path: str, *, is_confined: bool = False) -> tuple[str, ...]:
    """Returns NAMESPACE/NAME of the pods, of all namespaces, that run with a volume of a path of
    the cluster or of something below it. `is_confined`: as of `users_of`. Raises as KubeApi."""
    claims, found = set[Key](), list[str]()
    async for volume in api.list("PersistentVolume"):
        claims |= claims_of(path, [volume])
    async for pod in api.list("Pod"):  # 10,000 of them at once would take 300 MB
        found += users_of(path, claims, [pod], is_confined=is_confined)
    return tuple(sorted(found))


async def check(
    api: KubeApi,
    linger_s: float,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    *,
    has_controller: bool = True,
) -> None:
    """Returns when no pod uses a volume, nothing lingers, and no Dataset needs the controller that
    is uninstalled (`has_controller`). Raises InUse with the names, and as KubeApi."""
    await _check_unused(api, has_controller)
    await sleep(linger_s + SLACK_S)
    await _check_unused(api, has_controller)


async def _check_unused(api: KubeApi, has_controller: bool) -> None:
    found = await users(api, EVERYTHING)
    if found:
        raise InUse(
            f"pods use volumes of {DRIVER}: {in_words(found)}",
            remedy="delete these pods, then uninstall again",
        )
    left = await _datasets(api) if has_controller else ()
    if left:
        raise InUse(
            f"Datasets need the controller at their end: {in_words(left)}",
            remedy="delete them, or the claims that made them, then uninstall again",
        )


async def _datasets(api: KubeApi) -> tuple[str, ...]:
    """Returns NAMESPACE/NAME of the Datasets with our finalizer. Raises as KubeApi."""
    found = list[str]()
    with contextlib.suppress(NotFound):  # nothing defines Datasets here
        async for one in api.list("Dataset"):
            if FINALIZER in (one["metadata"].get("finalizers") or ()):
                found.append("/".join(key_of(one)))
    return tuple(sorted(found))


async def _run(linger_s: float, has_controller: bool) -> None:
    async with KubeApi.open(Account()) as api:
        await check(api, linger_s, has_controller=has_controller)


@click.command()
@click.option("--linger", default="60s", help="As of `cachefs csi`.")
@click.option("--controller", is_flag=True, help="The controller is uninstalled, too.")
def main(linger: str, controller: bool) -> None:
    try:
        asyncio.run(_run(parse_duration(linger), controller))
    except CacheFSError as err:
        print(f"cachefs: {err.one_line()}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
