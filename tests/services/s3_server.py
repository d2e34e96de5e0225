"""An S3 server of a test, and its clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.services.server_process import ServerProcess, free_port

__all__ = ["S3Server", "free_port"]


@dataclass(kw_only=True)
class S3Server(ServerProcess):
    """A process that speaks S3."""

    access_key: str
    secret_key: str
    region: str
    _client: Any = field(default=None, repr=False)

    @property
    def endpoint_url(self) -> str:
        return self.base_url

    def credentials(self) -> dict[str, str]:
        """What a process that uses this server needs in its environment."""
        keys = {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        return {**keys, "AWS_CA_BUNDLE": str(self.ca_bundle)} if self.ca_bundle else keys

    def client(self) -> Any:
        """The boto3 client of this server, for the tests' own reads and writes. Its making takes
        60 ms of CPU time, over TLS twice that."""
        if self._client is None:
            self._client = self._new_client()
        return self._client

    def _new_client(self) -> Any:
        import boto3
        from botocore.config import Config

        session = boto3.session.Session(
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
        )
        config = Config(
            s3={"addressing_style": "path"},
            retries={"max_attempts": 1},
            request_checksum_calculation="when_required",  # versitygw reads no trailer over TLS
        )
        trusted = str(self.ca_bundle) if self.ca_bundle else None
        return session.client("s3", endpoint_url=self.endpoint_url, config=config, verify=trusted)
