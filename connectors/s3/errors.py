"""Translation of the failures of S3 and botocore to typed errors: S3's error codes, and botocore's
exception classes. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple
from xml.etree import ElementTree

from cachefs.core import errors
from cachefs.core.errors import CacheFSError
from connectors.tls import from_tls

RENEW: Final = "renew the credentials (aws sso login, a new token) and try again"
ARCHIVED: Final = "restore it first: aws s3api restore-object"
WRONG_REGION: Final = "set the bucket's region: --region NAME"
CLOCK: Final = "set this machine's clock (timedatectl set-ntp true)"
MAY_READ: Final = "the caller needs s3:GetObject and s3:ListBucket on it"

_EXPIRED: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
_BAD_KEY: Final = frozenset(
    {
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "InvalidToken",
        "InvalidTokenId",  # MinIO
        "XAdminUserNotFound",  # versitygw
    }
)
_THROTTLED: Final = frozenset(
    {
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "RequestLimitExceeded",
        "TooManyRequests",
        "SlowDownRead",
        "SlowDownWrite",
        "ServerBusy",  # MinIO
    }
)
_REGION: Final = frozenset(
    {
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
        "PermanentRedirect",
        "TemporaryRedirect",
    }
)
_PASSING: Final = frozenset(
    {"RequestTimeout", "OperationAborted", "InternalError", "ConditionalRequestConflict"}
)
TOO_LONG: Final = "no object has a name this long"
SHORTER: Final = "a key has at most 1,024 bytes, the prefix of the source included"
CHECK_BUCKET: Final = "check the bucket's name and the endpoint"
# Errors of the parser: malformed XML, an unknown encoding, a multi-byte encoding.
XML_ERRORS: Final = (ElementTree.ParseError, LookupError, ValueError)


class S3Failure(NamedTuple):
    """The error document of a reply that is not 2xx."""

    status: int
    code: str = ""
    message: str = ""
    request_id: str = ""
    region: str = ""  # where the server wants the request signed for


def parse_failure(status: int, body: bytes, request_id: str = "", region: str = "") -> S3Failure:
    """Returns the error document of a reply; only its status if the body is empty or malformed."""
    try:
        root = ElementTree.fromstring(body) if body else None
    except XML_ERRORS:
        root = None
    if root is None:
        return S3Failure(status, request_id=request_id, region=region)
    text = {child.tag.rpartition("}")[2]: (child.text or "").strip() for child in root}
    return S3Failure(
        status,
        text.get("Code", ""),
        text.get("Message", ""),
        request_id or text.get("RequestId", ""),
        region or text.get("Region", ""),
    )


def classify(failure: S3Failure, path: str = "") -> CacheFSError:
    """Returns the typed error of a failed request."""
    kind, cause, remedy = _by_code(failure) or _by_status(failure)
    return kind(cause, remedy=remedy, path=path, request_id=failure.request_id)


def refuses_keys(failure: S3Failure) -> bool:
    """Returns whether other credentials may be accepted: the keys are unknown or have expired."""
    expired = failure.code in _EXPIRED or failure.code == "RequestTimeTooSkewed"
    return expired or failure.code in _BAD_KEY


def wants_region(failure: S3Failure) -> bool:
    """Returns whether the server wants the request signed for another region, or sent there."""
    return failure.code in _REGION or failure.status == 301


_Verdict = tuple[type[CacheFSError], str, str]


def _by_code(failure: S3Failure) -> _Verdict | None:
    code, details = failure.code, _details(failure)
    if code == "NoSuchBucket":
        return errors.NotFound, "no such bucket", CHECK_BUCKET
    if code in _EXPIRED:
        return errors.CredentialsMissing, "the credentials have expired", RENEW
    if code in _BAD_KEY:
        return errors.AccessDenied, details, "check the credentials and the profile"
    if code == "InvalidObjectState":
        return errors.Archived, "the object is archived", ARCHIVED
    if code == "RequestTimeTooSkewed":
        return errors.CredentialsMissing, "this machine's clock is wrong: " + details, CLOCK
    if wants_region(failure):
        wanted = f": the server wants {failure.region}" if failure.region else ""
        return errors.OriginError, f"wrong region{wanted} ({details})", WRONG_REGION
    if code == "InvalidBucketName":
        return errors.NotFound, "no bucket can have this name", CHECK_BUCKET
    if code == "KeyTooLongError":
        return errors.NotFound, TOO_LONG, SHORTER
    if code == "NotImplemented":
        return errors.Unsupported, f"the server lacks this operation ({details})", ""
    if code == "EntityTooLarge":
        return errors.Unsupported, "the file is larger than the store accepts", ""
    if code in _THROTTLED:
        return errors.Throttled, f"the origin throttles requests ({details})", ""
    if code in _PASSING:
        return errors.Unavailable, details, ""
    return None


def _by_status(failure: S3Failure) -> _Verdict:
    status, details = failure.status, _details(failure)
    if status == 404:
        return errors.NotFound, "no such object", ""
    if status in (401, 403):
        return errors.AccessDenied, f"access denied ({details})", MAY_READ
    if status in (412, 416):
        return errors.Stale, "the object is another version now", ""
    if status == 429:
        return errors.Throttled, f"the origin throttles requests ({details})", ""
    if status == 408 or status >= 500:
        return errors.Unavailable, f"the origin failed temporarily ({details})", ""
    return errors.OriginError, f"the origin refused ({details})", ""


def _details(failure: S3Failure) -> str:
    words = f"{failure.status} {failure.code}".strip()
    return f"{words}: {failure.message}" if failure.message else words


# botocore's errors, by class name, so that this module does not import it.

_CREDENTIALS: Final = (
    ("ProfileNotFound", "choose one: --aws-profile NAME"),
    ("PartialCredentialsError", "complete the credentials"),
    ("NoCredentialsError", "set --aws-profile NAME, or --anonymous for a public bucket"),
    ("CredentialRetrievalError", RENEW),
    ("UnauthorizedSSOTokenError", RENEW),
    ("SSOTokenLoadError", RENEW),
    ("TokenRetrievalError", RENEW),
    ("RefreshWithMFAUnsupportedError", RENEW),
    ("InvalidConfigError", "correct the AWS configuration"),
    ("ConfigParseError", "correct the AWS configuration"),
    ("ConfigNotFound", "correct the AWS configuration"),
    ("MetadataRetrievalError", RENEW),
    ("ClientError", RENEW),
    ("RuntimeError", RENEW),  # renewed ones have expired, too
)


def from_botocore(error: BaseException) -> CacheFSError:
    """Returns the typed error for an exception of botocore's credentials chain. Those of Python are
    of a file or a program that the configuration names, or of what a program prints."""
    names = {cls.__name__ for cls in type(error).__mro__}
    for name, remedy in _CREDENTIALS:
        if name in names:
            return errors.CredentialsMissing(_first_line(error), remedy=remedy)
    if "BotoCoreError" not in names:
        cause = f"the credentials cannot be read ({_first_line(error)})"
        return errors.CredentialsMissing(cause, remedy="correct the AWS configuration")
    if "SSLError" in names:
        return from_tls(str(error), "")
    return errors.Unreachable(f"the credentials cannot be fetched ({_first_line(error)})")


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0][:300] if lines else type(error).__name__
