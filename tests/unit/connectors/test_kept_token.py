"""A token that ends: fetched by one thread at a time, kept while no new one can be had."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from cachefs.core.errors import CredentialsMissing, Unreachable
from connectors.deadline import bounded
from connectors.kept_token import AGAIN_S, EARLY_S, KeptToken

LIFE_S = 3600.0


class TokenServer:
    """Gives numbers as tokens, or an error. `in_request` runs while it is being requested."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0
        self.life_s = LIFE_S
        self.requests = 0
        self.error: Exception | None = None
        self.in_request: Callable[[], object] = lambda: None
        self.kept: KeptToken[int] = KeptToken("a token", lambda: self.now)

    def token(self, secret: str = "") -> int:
        return self.kept.current(secret, self._fetch)

    def _fetch(self) -> tuple[int, float]:
        self.requests += 1
        self.in_request()
        if self.error is not None:
            raise self.error
        return self.requests, self.now + self.life_s


def test_a_token_is_kept_until_shortly_before_its_end() -> None:
    server = TokenServer()
    assert [server.token() for _ in range(3)] == [1] * 3
    server.now += LIFE_S - EARLY_S - 1
    assert server.token() == 1
    server.now += 1
    assert server.token() == 2


def test_another_secret_or_a_refusal_needs_another_token() -> None:
    server = TokenServer()
    assert [server.token("a"), server.token("b"), server.token("b")] == [1, 2, 2]
    server.kept.forget()
    assert server.token("b") == 3


@pytest.mark.parametrize("error", [Unreachable("silence"), CredentialsMissing("no"), OSError("x")])
def test_a_token_is_used_to_its_end_while_no_new_one_can_be_had(error: Exception) -> None:
    server = TokenServer()
    server.token()
    server.error = error
    server.now += LIFE_S - EARLY_S
    assert [server.token() for _ in range(3)] == [1] * 3
    assert server.requests == 2
    server.now += AGAIN_S
    assert server.token() == 1
    assert server.requests == 3
    server.now += EARLY_S - AGAIN_S
    with pytest.raises(type(error)):
        server.token()
    server.error = None
    assert server.token() == server.requests


def test_a_token_with_a_short_life_is_not_fetched_for_each_request() -> None:
    server = TokenServer()
    server.life_s = EARLY_S / 2
    assert [server.token() for _ in range(4)] == [1, 2, 2, 2]
    server.now += AGAIN_S
    assert server.token() == 3


def test_threads_use_a_token_while_another_one_renews_it() -> None:
    server = TokenServer()
    server.token()
    server.now += LIFE_S - 1
    seen: list[int] = []
    server.in_request = lambda: seen.append(server.token())
    assert server.token() == 2
    assert seen == [1]


def test_without_a_token_threads_wait_until_their_deadline_only() -> None:
    server, begun, go_on = TokenServer(), threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        assert go_on.wait(30)

    server.in_request = hang
    first = threading.Thread(target=server.token, daemon=True)
    first.start()
    assert begun.wait(30)
    server.kept.forget()  # waits for nothing
    with (
        bounded(time.monotonic() + 0.05),
        pytest.raises(Unreachable, match="has been fetching a token"),
    ):
        server.token()
    go_on.set()
    first.join(30)
    assert server.token() == 1
