"""The secret that a sender of events presents."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachefs.core.errors import AccessDenied, CredentialsMissing
from connectors.credential import DIRECTORY_VARIABLE
from master.push.webhook_secrets import WebhookSecrets, check_present

SECRET = "a-secret-of-the-tests"  # noqa: S105


def test_only_the_secret_of_the_source_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    path = tmp_path / "team-a" / "webhook_secret"
    path.parent.mkdir()
    path.write_text(f"{SECRET}\n")
    secrets = WebhookSecrets()
    secrets.check("webhook:team-a", SECRET, 0.0)
    for push, secret in (
        ("webhook:team-a", "wrong"),
        ("webhook:team-a", ""),
        ("", ""),
        ("", SECRET),
        ("sqs:http://127.0.0.1/team-a", SECRET),
        ("poll:5s", SECRET),
        ("webhook:team-a", "no UTF-8: \udcff"),
    ):
        with pytest.raises(AccessDenied):
            secrets.check(push, secret, 0.0)
    path.write_text("short")
    with pytest.raises(CredentialsMissing, match="less than 16 characters"):
        WebhookSecrets().check("webhook:team-a", "short", 0.0)
    with pytest.raises(CredentialsMissing, match="not on this machine"):
        secrets.check("webhook:team-b", "", 0.0)


def test_a_secret_that_was_right_is_not_read_again_within_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    (tmp_path / "team-a").mkdir()
    (tmp_path / "team-a" / "webhook_secret").write_text(SECRET)
    secrets = WebhookSecrets()
    assert not secrets.passed("webhook:team-a", SECRET, 10.0)
    secrets.check("webhook:team-a", SECRET, 10.0)
    assert secrets.passed("webhook:team-a", SECRET, 10.9)
    assert not secrets.passed("webhook:team-a", "wrong", 10.9)
    assert not secrets.passed("webhook:team-a", "no UTF-8: \udcff", 10.9)
    assert not secrets.passed("webhook:team-b", SECRET, 10.9)
    assert not secrets.passed("webhook:team-a", SECRET, 11.1)


def test_a_setting_without_its_secret_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every event would be, without a trace for the operator."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    for push in ("", "sqs:http://127.0.0.1/team-a", "poll:5s"):
        check_present(push)
    path = tmp_path / "team-a" / "webhook_secret"

    def refusal() -> str:
        with pytest.raises(CredentialsMissing) as refused:
            check_present("webhook:team-a")
        return refused.value.one_line()

    remedy = f"write the sender's secret to {path} on the master"
    cause = "the master would refuse every event: the credential 'team-a' is not on this machine"
    assert refusal() == f"{cause}; {remedy}"
    path.parent.mkdir()
    path.write_text("short")
    assert "has less than 16 characters; " + remedy in refusal()
    path.write_text(SECRET)
    path.chmod(0o666)
    assert f"{path}: the master would refuse every event: " in refusal()
    path.chmod(0o600)
    check_present("webhook:team-a")
