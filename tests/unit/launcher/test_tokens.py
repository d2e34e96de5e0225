"""The token files of this machine."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cachefs.core.errors import CacheFSError
from cachefs.launcher import tokens
from cachefs.launcher.state import StateHome


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EPERM])
def test_a_token_that_cannot_be_kept(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full, or has no hard links."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(CacheFSError, match="cannot be saved") as caught:
        tokens.make(StateHome(tmp_path / "home"), 1)
    assert "--home" in caught.value.remedy
    assert not list((tmp_path / "home" / "tokens").iterdir())
