"""Heads of requests are signed as botocore signs the same requests."""

from __future__ import annotations

import datetime
from unittest import mock
from urllib.parse import urlsplit

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import example, given
from hypothesis import strategies as st

from connectors.s3_access import Keys
from connectors.s3_http import S3Http
from connectors.s3_options import S3Options
from connectors.s3_sign import Signer

NOON_S = 1_795_262_400.0  # 2026-11-21, 12:00:00 UTC
RANGE = {"Range": "bytes=0-9", "If-Match": '"e1"'}
KEYS = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]), st.sampled_from(" +%/~'\"?#&=;\0\r\n\t\x7f")
    ),
    min_size=1,
    max_size=60,
)
SECRETS = st.text("abcXYZ019+/=", min_size=1, max_size=40)


def read_head(head: bytes) -> tuple[str, dict[str, str]]:
    """The first line, and headers by their names in lower case: each of them once."""
    assert head.endswith(b"\r\n\r\n")
    first, *lines = head[:-4].decode("ascii").split("\r\n")
    pairs = [line.split(": ", 1) for line in lines]
    headers = {name.lower(): value for name, value in pairs}
    assert len(headers) == len(pairs)
    return first, headers


def by_botocore(
    url: str, region: str, keys: Keys, more: dict[str, str], now_s: float
) -> tuple[str, dict[str, str]]:
    """What botocore sends, with the header of the host that its signature is for."""
    now = datetime.datetime.fromtimestamp(now_s, datetime.UTC).replace(tzinfo=None)
    request = AWSRequest(method="GET", url=url, headers=more)
    with mock.patch("botocore.auth.get_current_datetime", return_value=now):
        S3SigV4Auth(Credentials(*keys), "s3", region).add_auth(request)
    headers = {name.lower(): value for name, value in request.headers.items()}
    headers["host"] = urlsplit(url).netloc
    return f"GET {urlsplit(url).path} HTTP/1.1", headers


def quoted(key: str) -> str:
    """By RFC 3986, of its bytes, but for the slashes."""
    plain = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~/"
    return "".join(chr(byte) if byte in plain else f"%{byte:02X}" for byte in key.encode())


@given(
    key=KEYS,
    base=st.sampled_from(["", "/bucket", "/service/some.bucket"]),
    secret=SECRETS,
    token=st.none() | SECRETS,
    region=st.sampled_from(["us-east-1", "eu-central-1"]),
    more=st.sampled_from([{}, {"x-amz-request-payer": "requester"}]),
    now_s=st.integers(0, 16 * 10**9).map(
        lambda quarters: quarters / 4
    ),  # not a hair before the next
)
@example("a/../b//c", "/bucket", "s", None, "us-east-1", {}, NOON_S)
@example("/leading and trailing/", "", "s", "t", "us-east-1", {}, NOON_S)
def test_it_signs_as_botocore_does(
    key: str,
    base: str,
    secret: str,
    token: str | None,
    region: str,
    more: dict[str, str],
    now_s: float,
) -> None:
    keys = Keys("AKID", secret, token)
    signer = Signer("origin.test:9000", base, region, keys, more, lambda: now_s)
    first, headers = read_head(signer.head(key, RANGE))
    for name, value in RANGE.items():
        assert headers.pop(name.lower()) == value
    url = f"http://origin.test:9000{base}/{quoted(key)}"
    assert (first, headers) == by_botocore(url, region, keys, more, now_s)


@pytest.mark.parametrize("style", ["path", "virtual"])
@pytest.mark.parametrize("payer", [False, True])
@pytest.mark.parametrize(
    "endpoint",
    [
        "http://origin.test:9000",
        "http://Origin.test",
        "http://origin.test:80",
        "http://origin.test/below/it",
        "http://[::1]:9000",
    ],
)
def test_a_signer_of_an_endpoint_is_for_its_requests(
    endpoint: str, payer: bool, style: str, aws: pytest.MonkeyPatch
) -> None:
    if style == "virtual" and "[" in endpoint:
        style = "path"  # a bucket is no part of an address
    aws.setenv("AWS_SESSION_TOKEN", "to/ken+=")
    options = S3Options(
        endpoint_url=endpoint, region="eu-north-1", addressing_style=style, requester_pays=payer
    )
    http = S3Http("bucket", options)
    now = datetime.datetime.fromtimestamp(NOON_S, datetime.UTC).replace(tzinfo=None)
    with mock.patch("botocore.auth.get_current_datetime", return_value=now):
        wanted = http.signed("GET", "a b/ü+%")
    signer = http.signer()
    signer._clock = lambda: NOON_S
    first, headers = read_head(signer.head("a b/ü+%", {}))
    assert first == f"GET {urlsplit(wanted.url).path} HTTP/1.1"
    headers.pop("host")  # is in the signature
    assert headers == {name.lower(): value for name, value in wanted.headers.items()}
    http.close()


def test_the_example_of_the_reference() -> None:
    """ "Signature Calculations for the Authorization Header", its GET Object."""
    secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"  # noqa: S105 -- AWS made it public
    keys = Keys("AKIAIOSFODNN7EXAMPLE", secret, None)
    host = "examplebucket.s3.amazonaws.com"
    signer = Signer(host, "", "us-east-1", keys, {"range": "bytes=0-9"}, lambda: 1_369_353_600.0)
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    signature = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    assert signer.head("test.txt", {"X-Other": "1"}).decode() == (
        "GET /test.txt HTTP/1.1\r\n"
        f"host: {host}\r\n"
        "range: bytes=0-9\r\n"
        f"x-amz-content-sha256: {empty}\r\n"
        "x-amz-date: 20130524T000000Z\r\n"
        "Authorization: AWS4-HMAC-SHA256 "
        "Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
        "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, "
        f"Signature={signature}\r\n"
        "X-Other: 1\r\n"
        "\r\n"
    )


def test_without_keys_nothing_is_signed() -> None:
    more = {"x-amz-request-payer": "requester"}
    first, headers = read_head(Signer("origin.test", "/b", "r", None, more).head("k ü", RANGE))
    assert first == "GET /b/k%20%C3%BC HTTP/1.1"
    assert headers == {
        "range": "bytes=0-9",
        "if-match": '"e1"',
        "host": "origin.test",
        "x-amz-request-payer": "requester",
    }


@pytest.mark.parametrize(
    "seconds",
    [
        [0.0, 0.0, 0.4, 0.99999],
        [0.0, 0.99999, 1.0, 2.5],
        [43_199.5, 43_199.99999, 43_200.0, 43_201.0],  # midnight
        [5.0, 4.0, -90_000.0],  # a clock that is set back
    ],
)
def test_a_signature_is_of_its_second_and_its_day(seconds: list[float]) -> None:
    keys = Keys("AKID", "secret", "token")
    now_s = NOON_S
    signer = Signer("origin.test", "", "us-east-1", keys, clock=lambda: now_s)
    for number, after_s in enumerate(seconds):
        now_s = NOON_S + after_s
        found = read_head(signer.head(f"k{number}", {}))
        assert found == by_botocore(f"http://origin.test/k{number}", "us-east-1", keys, {}, now_s)


def test_other_keys_are_another_signature() -> None:
    def head(*keys: str) -> bytes:
        found = Keys(keys[0], keys[1], keys[2] if len(keys) > 2 else None)
        return Signer("h", "", "us-east-1", found, clock=lambda: NOON_S).head("k", {})

    assert len({head("a", "s"), head("a", "s2"), head("b", "s"), head("a", "s", "t")}) == 4
