"""The flags of `cachefs operator`, and an installation without its extra."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from cachefs.cli.commands import operator
from cachefs.cli.settings import load_settings
from cachefs.core.errors import Unsupported
from cachefs.core.install import check_extra
from cachefs.kube.rules import Rules


def chosen(tmp_path: Path, **flags: Any) -> Any:
    return load_settings({"home": str(tmp_path), **flags}, None, {})


def test_the_flags_become_the_spec(tmp_path: Path) -> None:
    spec = operator.plan(
        chosen(
            tmp_path,
            master="cachefs-master:1",
            replica_name="pod-1",
            lease_namespace="cachefs",
            file_sources=True,
            own_profiles=True,
            confine=True,
            node_metrics="unix:/run/m.sock",
            log_format="json",
        )
    )
    assert (spec.master, spec.address) == ("http://cachefs-master:1", "cachefs-master:1")
    assert (spec.name, spec.namespace, spec.metrics) == ("pod-1", "cachefs", "unix:/run/m.sock")
    assert spec.rules == Rules(file_sources=True, own_profiles=True, confine=True)
    assert spec.log_json


def test_files_and_foreign_profiles_are_no_default_but_profiles_are(tmp_path: Path) -> None:
    spec = operator.plan(chosen(tmp_path, master="m:1"))
    assert spec.rules == Rules()
    assert spec.name


def test_without_the_extra_the_command_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "kopf" else name)
    with pytest.raises(Unsupported, match="kopf") as caught:
        check_extra("kube", operator.MODULES, "the controller")
    assert "[kube]" in caught.value.remedy
