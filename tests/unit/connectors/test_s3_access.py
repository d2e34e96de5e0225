"""Credentials, regions, endpoints, proxies and certificates, as the AWS tools find them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from botocore.credentials import RefreshableCredentials

from cachefs.core import errors
from cachefs.core.model import Fingerprint, Kind
from connectors.deadline import bounded
from connectors.s3 import access
from connectors.s3.access import S3Credentials, resolve_endpoint
from connectors.s3.connector import S3Connector
from connectors.s3.options import S3Options, parse_options
from tests.unit.connectors.certificates import make_certificate
from tests.unit.connectors.scripted_s3 import (
    Answer,
    Request,
    ScriptedS3,
    error,
    listing,
    ranged,
    scripted_s3,
)

VERSION = Fingerprint(Kind.FILE, 4, 0, "e1")


def content(source: S3Connector) -> bytes:
    return b"".join(bytes(chunk) for chunk in source.read(b"f", 0, 4, VERSION))


def answer(request: Request) -> Answer:
    """Lists one file and reads it."""
    return ranged(request, b"data") if "range" in request.headers else listing(("f", 4))


def signer(request: Request) -> str:
    """The access key and region of a signature, "" without one."""
    parts = request.headers.get("authorization", "").partition("Credential=")[2].split("/")
    return f"{parts[0]} {parts[2]}" if len(parts) > 2 else ""


def test_the_environment_signs_listings_and_reads(server: ScriptedS3) -> None:
    server.script = answer
    source = S3Connector("bucket", "", S3Options(server.url, region="eu-west-1"))
    source.check()
    assert content(source) == b"data"
    assert {signer(request) for request in server.requests} == {"key eu-west-1"}


def test_a_profile_signs_and_names_its_region(
    server: ScriptedS3, aws: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "aws-config").write_text(
        "[profile p]\naws_access_key_id = pkey\naws_secret_access_key = s\nregion = ap-south-1\n"
        f"endpoint_url = {server.url}\n"
    )
    server.script = answer
    source = S3Connector("bucket", "", S3Options(profile="p"))
    source.check()
    assert content(source) == b"data"
    assert {signer(request) for request in server.requests} == {"pkey ap-south-1"}


def test_a_profile_that_is_not_there(server: ScriptedS3) -> None:
    with pytest.raises(errors.CredentialsMissing, match="nowhere"):
        S3Connector("bucket", "", S3Options(server.url, profile="nowhere")).check()


def test_no_credentials(server: ScriptedS3, aws: pytest.MonkeyPatch) -> None:
    aws.delenv("AWS_ACCESS_KEY_ID")
    aws.delenv("AWS_SECRET_ACCESS_KEY")
    source = S3Connector("bucket", "", S3Options(server.url, region="us-east-1"))
    with pytest.raises(errors.CredentialsMissing, match="no AWS credentials") as caught:
        source.check()
    assert "anonymous" in caught.value.remedy
    with pytest.raises(errors.CredentialsMissing):
        content(source)


def test_anonymous_requests_are_not_signed(server: ScriptedS3) -> None:
    server.script = answer
    source = S3Connector("bucket", "", S3Options(server.url, anonymous=True))
    source.check()
    assert content(source) == b"data"
    assert all("authorization" not in request.headers for request in server.requests)


def test_the_requester_pays(server: ScriptedS3) -> None:
    server.script = answer
    options = S3Options(server.url, requester_pays=True, region="us-east-1")
    source = S3Connector("bucket", "", options)
    source.check()
    assert content(source) == b"data"
    payers = {request.headers.get("x-amz-request-payer") for request in server.requests}
    assert payers == {"requester"}


def test_a_token_is_sent(server: ScriptedS3, aws: pytest.MonkeyPatch) -> None:
    aws.setenv("AWS_SESSION_TOKEN", "the-token")
    server.script = answer
    source = S3Connector("bucket", "", S3Options(server.url, region="us-east-1"))
    source.check()
    assert content(source) == b"data"
    assert {r.headers["x-amz-security-token"] for r in server.requests} == {"the-token"}


def test_renewed_credentials_are_found_after_expired_ones(
    server: ScriptedS3, aws: pytest.MonkeyPatch
) -> None:
    server.script = lambda request: (
        error(400, "ExpiredToken") if signer(request).startswith("key ") else answer(request)
    )
    source = S3Connector("bucket", "", S3Options(server.url, region="us-east-1"))
    with pytest.raises(errors.CredentialsMissing, match="expired"):
        content(source)
    aws.setenv("AWS_ACCESS_KEY_ID", "renewed")
    assert content(source) == b"data"
    source.check()


@pytest.mark.parametrize("code", ["InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidTokenId"])
def test_other_keys_are_found_after_refused_ones(
    server: ScriptedS3, aws: pytest.MonkeyPatch, tmp_path: Path, code: str
) -> None:
    """An operator replaces the keys of a file, and deletes the former ones at the store. MinIO has
    InvalidTokenId for a session that ended."""
    aws.delenv("AWS_ACCESS_KEY_ID")
    aws.delenv("AWS_SECRET_ACCESS_KEY")
    shared = tmp_path / "keys"
    aws.setenv("AWS_SHARED_CREDENTIALS_FILE", str(shared))
    keys = "[default]\naws_access_key_id = {}\naws_secret_access_key = s\n"
    shared.write_text(keys.format("former"))
    server.script = lambda request: (
        error(403, code) if signer(request).startswith("former ") else answer(request)
    )
    source = S3Connector("bucket", "", S3Options(server.url, region="us-east-1"))
    with pytest.raises(errors.AccessDenied) as caught:
        content(source)
    assert caught.value.remedy == "check the credentials and the profile"
    shared.write_text(keys.format("other"))
    assert content(source) == b"data"


@pytest.mark.parametrize(
    "line",
    [
        "credential_process = /nonexistent/tool",
        "credential_process = /bin/echo garbage",
        "credential_process = /bin/echo []",
        'credential_process = "unbalanced',
        "credential_process = /bin/sh -c \"printf '\\377'\"",
        "role_arn = arn:aws:iam::1:role/x\nweb_identity_token_file = /nonexistent/token",
    ],
)
def test_a_profile_that_gives_no_credentials(
    aws: pytest.MonkeyPatch, tmp_path: Path, line: str
) -> None:
    (tmp_path / "aws-config").write_text(f"[profile p]\n{line}\n")
    with pytest.raises(errors.CredentialsMissing) as caught:
        S3Credentials(S3Options(profile="p")).current()
    assert caught.value.remedy == "correct the AWS configuration"


def test_keys_that_have_expired_when_they_are_given(
    aws: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tool = tmp_path / "tool"
    tool.write_text(
        "#!/bin/sh\n"
        'echo \'{"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "s", "Expiration":'
        ' "2001-01-01T00:00:00Z"}\'\n'
    )
    tool.chmod(0o755)
    (tmp_path / "aws-config").write_text(f"[profile p]\ncredential_process = {tool}\n")
    with pytest.raises(errors.CredentialsMissing, match="still expired") as caught:
        S3Credentials(S3Options(profile="p")).current()
    assert "renew" in caught.value.remedy


@pytest.fixture
def hanging(aws: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A chain that is searched until the event is set, as with a program that hangs."""
    begun, go_on = threading.Event(), threading.Event()

    class Session:
        def get_credentials(self) -> None:
            begun.set()
            assert go_on.wait(30)

    aws.setattr(access, "open_session", lambda _: Session())
    yield begun
    go_on.set()


def test_a_search_for_credentials_that_hangs_holds_no_other_request(
    hanging: threading.Event,
) -> None:
    credentials = S3Credentials(S3Options())

    def search() -> None:
        with contextlib.suppress(errors.CredentialsMissing):
            credentials.current()

    searching = threading.Thread(target=search, daemon=True)
    searching.start()
    assert hanging.wait(30)
    with (
        bounded(time.monotonic() + 0.05),
        pytest.raises(errors.Unreachable, match="has been fetching the credentials"),
    ):
        credentials.current()
    credentials.forget()


def test_a_renewal_that_hangs_holds_no_other_request(aws: pytest.MonkeyPatch) -> None:
    """botocore's own threads would wait for it without a time limit."""
    begun, go_on, now = threading.Event(), threading.Event(), time.time()

    def renewed() -> dict[str, str]:
        begun.set()
        assert go_on.wait(30)
        return {"access_key": "b", "secret_key": "s", "token": "t", "expiry_time": at(now + 7200)}

    chain = RefreshableCredentials(
        "a", "s", "t", datetime.fromisoformat(at(now + 3600)), renewed, "test",
        time_fetcher=lambda: datetime.fromisoformat(at(now)),
    )  # fmt: skip
    aws.setattr(access, "open_session", lambda _: SimpleNamespace(get_credentials=lambda: chain))
    credentials = S3Credentials(S3Options(), lambda: now)
    first = credentials.current()
    now += 3500.0
    renewing = threading.Thread(target=credentials.current, daemon=True)
    renewing.start()
    assert begun.wait(30)
    with bounded(time.monotonic() + 0.05):
        assert credentials.current() == first
        now += 200.0
        with pytest.raises(errors.Unreachable, match="has been fetching the credentials"):
            credentials.current()
    go_on.set()
    renewing.join(30)
    renewed_keys = credentials.current()
    assert renewed_keys is not None
    assert renewed_keys.access_key == "b"


def at(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat()


def test_the_region_is_asked_of_the_bucket(server: ScriptedS3) -> None:
    def script(request: Request) -> Answer:
        if request.method == "HEAD":
            return Answer(403, headers={"x-amz-bucket-region": "eu-north-1"})
        return answer(request)

    server.script = script
    source = S3Connector("bucket", "", S3Options(server.url))
    source.check()
    assert content(source) == b"data"
    assert [signer(request) for request in server.requests[1:]] == ["key eu-north-1"] * 2


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_no_region_is_guessed_while_the_server_is_busy(server: ScriptedS3, status: int) -> None:
    """It would be used until the end of the process."""
    region = Regions("eu-north-1")
    server.script = lambda request: Answer(status)
    source = S3Connector("bucket", "", S3Options(server.url))
    with pytest.raises(errors.CacheFSError) as caught:
        source.check()
    assert caught.value.retryable
    server.script = region.answer
    source.check()
    assert content(source) == b"data"


def test_a_bucket_that_was_made_anew_in_another_region_is_found(server: ScriptedS3) -> None:
    region = Regions("eu-north-1")
    server.script = region.answer
    source = S3Connector("bucket", "", S3Options(server.url))
    assert content(source) == b"data"
    region.name = "us-west-2"
    with pytest.raises(errors.OriginError, match="the server wants us-west-2"):
        content(source)
    assert content(source) == b"data"


class Regions:
    """A bucket in one region, which refuses requests that are signed for another."""

    def __init__(self, name: str) -> None:
        self.name = name

    def answer(self, request: Request) -> Answer:
        if request.method == "HEAD" and request.target == "/bucket":
            return Answer(403, headers={"x-amz-bucket-region": self.name})
        if signer(request).endswith(f" {self.name}"):
            return answer(request)
        wanted = f"<Region>{self.name}</Region>"
        return error(400, "AuthorizationHeaderMalformed", wanted)


def test_a_wrong_region_is_named(server: ScriptedS3) -> None:
    server.script = lambda _request: error(
        400, "AuthorizationHeaderMalformed", "<Region>eu-north-1</Region>"
    )
    source = S3Connector("bucket", "", S3Options(server.url, region="us-east-1"))
    with pytest.raises(errors.OriginError, match="the server wants eu-north-1"):
        source.check()


def test_a_proxy_of_the_environment_is_used(server: ScriptedS3, aws: pytest.MonkeyPatch) -> None:
    server.script = answer
    aws.setenv("HTTP_PROXY", server.url)
    aws.setenv("http_proxy", server.url)
    source = S3Connector("bucket", "", S3Options("http://storage.invalid", region="us-east-1"))
    source.check()
    assert content(source) == b"data"
    assert all(r.target.startswith("http://storage.invalid/bucket") for r in server.requests)


def test_the_option_wins_over_the_environment(server: ScriptedS3, aws: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        aws.setenv(name, "http://127.0.0.1:1")
    aws.setenv("AWS_REGION", "us-east-2")
    aws.setenv("AWS_DEFAULT_REGION", "us-east-2")
    server.script = answer
    source = S3Connector("bucket", "", S3Options(server.url, region="eu-west-1"))
    source.check()
    assert content(source) == b"data"
    assert {signer(request) for request in server.requests} == {"key eu-west-1"}


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_the_endpoint_of_the_environment(
    server: ScriptedS3, aws: pytest.MonkeyPatch, name: str
) -> None:
    aws.setenv(name, server.url)
    server.script = answer
    source = S3Connector("bucket", "", S3Options(region="eu-west-1"))
    source.check()
    assert content(source) == b"data"


def test_an_endpoint_of_the_environment_without_a_scheme(aws: pytest.MonkeyPatch) -> None:
    aws.setenv("AWS_ENDPOINT_URL", "127.0.0.1:9000")
    with pytest.raises(errors.BadConfig, match=r"bad endpoint URL \(.*127\.0\.0\.1:9000") as caught:
        resolve_endpoint("bucket", S3Options())
    assert "AWS_ENDPOINT_URL" in caught.value.remedy


@pytest.mark.parametrize(
    ("bucket", "options", "url"),
    [
        ("b-1", {"region": "eu-west-1"}, "https://b-1.s3.eu-west-1.amazonaws.com"),
        ("b-1", {"region": "cn-north-1"}, "https://b-1.s3.cn-north-1.amazonaws.com.cn"),
        ("b.1", {"region": "eu-west-1"}, "https://s3.eu-west-1.amazonaws.com/b.1"),
        ("Old_1", {"region": "us-west-2"}, "https://s3.us-west-2.amazonaws.com/Old_1"),
        (
            "b-1",
            {"region": "eu-west-1", "addressing_style": "path"},
            "https://s3.eu-west-1.amazonaws.com/b-1",
        ),
        ("b-1", {"endpoint_url": "http://h:9000"}, "http://h:9000/b-1"),
        (
            "b-1",
            {"endpoint_url": "http://h:9000", "addressing_style": "virtual"},
            "http://b-1.h:9000",
        ),
    ],
)
def test_addressing(bucket: str, options: dict[str, str], url: str) -> None:
    assert resolve_endpoint(bucket, S3Options(**options)).url == url  # type: ignore[arg-type]


def test_directory_buckets_are_refused() -> None:
    with pytest.raises(errors.Unsupported, match="S3 Express"):
        resolve_endpoint("b--usw2-az1--x-s3", S3Options())


@pytest.mark.parametrize(
    "options",
    [
        {"region": "\u00e9"},
        {"region": "us-east-1\nX-Amz: more"},
        {"endpoint_url": "http://b\u00fccher.test"},
        {"endpoint_url": "http://[::1"},
        {"endpoint_url": "http://host\r\nX: y"},
    ],
)
def test_what_no_request_can_carry_is_refused(options: dict[str, str]) -> None:
    given = {"endpoint_url": "http://127.0.0.1:9", "region": "us-east-1", **options}
    with pytest.raises(errors.BadConfig) as caught:
        resolve_endpoint("bucket", parse_options(given))
    assert caught.value.remedy


@pytest.mark.parametrize("name", ["AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID"])
@pytest.mark.parametrize("value", ["t\u00e9", "token\nX-Amz: more"])
def test_credentials_that_no_header_can_carry(
    aws: pytest.MonkeyPatch, name: str, value: str
) -> None:
    aws.setenv(name, value)
    with pytest.raises(errors.CredentialsMissing, match="no header can carry") as caught:
        S3Credentials(S3Options()).current()
    assert value not in caught.value.one_line()


def test_keys_do_not_show_themselves() -> None:
    assert "secret" not in repr(S3Credentials(S3Options()).current())


@pytest.fixture(scope="module", params=[True, False], ids=["as-a-ca", "as-a-server"])
def certificate(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "origin.pem"
    return make_certificate(path, ca=request.param)


def test_a_certificate_of_ones_own(certificate: Path, aws: pytest.MonkeyPatch) -> None:
    with scripted_s3(certificate) as server:
        server.script = answer
        by_option = S3Options(server.url, region="us-east-1", ca_bundle=str(certificate))
        source = S3Connector("bucket", "", by_option)
        source.check()
        assert content(source) == b"data"
        aws.setenv("AWS_CA_BUNDLE", str(certificate))
        source = S3Connector("bucket", "", S3Options(server.url, region="us-east-1"))
        source.check()
        assert content(source) == b"data"


def test_a_certificate_that_nobody_trusts(certificate: Path) -> None:
    with scripted_s3(certificate) as server:
        server.script = answer
        source = S3Connector("bucket", "", S3Options(server.url, region="us-east-1"))
        with pytest.raises(errors.Unreachable, match="not trusted") as caught:
            source.check()
        assert "--ca-bundle" in caught.value.remedy


def test_https_at_a_port_that_does_not_speak_tls_says_so(aws: pytest.MonkeyPatch) -> None:
    with scripted_s3() as server:
        server.script = answer
        url = server.url.replace("http://", "https://")
        source = S3Connector("bucket", "", S3Options(url, region="us-east-1"))
        with pytest.raises(errors.Unreachable, match="does not speak TLS") as caught:
            source.check()
        assert caught.value.remedy == "write its URL as http://"


def test_a_certificate_of_another_host(certificate: Path, aws: pytest.MonkeyPatch) -> None:
    with scripted_s3(certificate) as server:
        server.script = answer
        url = server.url.replace("127.0.0.1", "localhost")
        options = S3Options(url, region="us-east-1", ca_bundle=str(certificate))
        with pytest.raises(errors.Unreachable, match="is for another host"):
            S3Connector("bucket", "", options).check()
