"""What a user of Datasets is told to do."""

from __future__ import annotations

from cachefs.core.errors import CredentialsMissing, NotFound
from cachefs.kube.remedies import with_remedy


def test_missing_credentials_have_the_fields_of_a_dataset_as_their_remedy() -> None:
    err = CredentialsMissing("no profile nobody", remedy="--aws-profile NAME", path="s3://b")
    told = with_remedy(err).one_line()
    assert told.startswith("s3://b: no profile nobody; spec.credentials may name a profile")
    assert "credentials.named" in told
    assert "--aws-profile" not in told


def test_other_errors_keep_their_remedy() -> None:
    err = NotFound("no such bucket", remedy="look again")
    assert with_remedy(err) is err
