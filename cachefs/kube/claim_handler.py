"""Makes the volumes of claims of our StorageClasses, and deletes those that have lost their
claim."""

from __future__ import annotations

import contextlib
from typing import Final

from cachefs.core.errors import CacheFSError, InUse, NotFound
from cachefs.kube import events, volumes
from cachefs.kube.api import KubeApi
from cachefs.kube.events import Event, Severity
from cachefs.kube.facts import Facts
from cachefs.kube.names import Key, Object, key_of
from cachefs.kube.reporter import Reporter
from cachefs.kube.steps import RETRY

DONE: Final = 0.0


class ClaimHandler:
    """Handles claims and volumes. Every method may be repeated. Raises the errors of the API
    server."""

    def __init__(self, api: KubeApi, facts: Facts) -> None:
        self._api = api
        self._facts = facts
        self._reporter = Reporter(api)

    async def handle_claim(self, key: Key) -> float:
        """Makes the volume of a claim that needs one. Returns as a handler of `Handling` does."""
        claim = await self._api.find("PersistentVolumeClaim", key)
        if claim is None or not volumes.is_ours(claim):
            return DONE
        name = claim["spec"].get("storageClassName") or ""
        storage_class = await self._api.find("StorageClass", ("", name)) if name else None
        if storage_class is None:
            return await self._refuse(claim, f"there is no StorageClass {name!r}")
        found = volumes.provision(claim, storage_class)
        if isinstance(found, volumes.Refused):
            return await self._refuse(claim, found.cause)
        return await self._make(claim, found)

    async def _make(self, claim: Object, given: volumes.Given) -> float:
        try:
            if given.dataset is not None:
                await self._make_dataset(claim, given.dataset)
            with contextlib.suppress(InUse):  # made before
                await self._api.create(given.volume)
                self._facts.provisioned += 1
        except CacheFSError as err:
            return await self._refuse(claim, err.one_line())
        path = given.volume["spec"]["csi"]["volumeAttributes"]["path"]
        text = f"the volume {given.volume['metadata']['name']} shows {path}"
        await self._report(claim, events.NORMAL, "ProvisioningSucceeded", text)
        return DONE

    async def _make_dataset(self, claim: Object, dataset: Object) -> None:
        """Creates the Dataset of a claim. Raises InUse if another one has its name."""
        try:
            await self._api.create(dataset)
        except InUse:
            known = await self._api.get("Dataset", key_of(dataset))
            owners = known["metadata"].get("ownerReferences") or ()
            if claim["metadata"]["uid"] not in [owner.get("uid") for owner in owners]:
                raise

    async def _refuse(self, claim: Object, cause: str) -> float:
        await self._report(claim, events.WARNING, "ProvisioningFailed", cause)
        return RETRY

    async def _report(self, claim: Object, type: Severity, reason: str, text: str) -> None:
        await self._reporter.report([Event(events.of_claim(claim), type, reason, text)])

    async def handle_volume(self, name: str) -> float:
        """Deletes a volume that this driver provisioned and whose claim was removed."""
        volume = await self._api.find("PersistentVolume", ("", name))
        if volume is not None and volumes.is_released(volume):
            with contextlib.suppress(NotFound):
                await self._api.delete("PersistentVolume", ("", name), volume["metadata"]["uid"])
        return DONE
