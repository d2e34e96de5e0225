"""The client of the admin API: what it makes of answers, and of what is no answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cachefs.client.admin import AdminClient
from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.errors import InUse, ProtocolError, Unreachable
from cachefs.core.jobs import JobSpec
from cachefs.core.policies import Policy
from cachefs.core.specs import Security
from tests.unit.cli.fake_admin import NAMESPACE
from tests.unit.cli.fake_master import FakeMaster


def refuse(body: m.Message) -> m.Message:
    raise InUse("it serves", remedy="drain it first", path="/x")


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    made = FakeMaster(
        {
            c.Greeting: lambda _: c.Greeted(NAMESPACE),
            c.MasterStatus: lambda _: c.MasterStatusReply({"names": 3}),
            m.SetPolicy: refuse,
            m.SubmitJob: lambda _: m.JobSubmitted(7),
        }
    )
    with made.listening():
        yield made


def client(master: FakeMaster) -> AdminClient:
    return AdminClient(master.url, Security())


def test_it_takes_the_messages_of_a_session(master: FakeMaster) -> None:
    with client(master) as admin:
        assert admin.call(c.MasterStatus(), c.MasterStatusReply).status == {"names": 3}
        assert admin.namespace == NAMESPACE
        with pytest.raises(ProtocolError, match="has no Lookup"):
            admin.call(m.Lookup(NAMESPACE, 1, b"x"), m.Found)


def test_a_problem_is_the_error_that_the_master_raised(master: FakeMaster) -> None:
    with client(master) as admin, pytest.raises(InUse) as caught:
        admin.set_policy(b"x", Policy(pin=True))
    found = caught.value
    assert (found.cause, found.remedy, found.path) == ("it serves", "drain it first", "/x")


def test_a_submit_whose_answer_is_lost_is_sent_again_with_its_key(master: FakeMaster) -> None:
    with client(master) as admin:
        admin.status()
        master.drop_next = True  # on the kept connection
        assert admin.submit_job(JobSpec((b"a",))).job == 7
    (asked,) = [one for one in master.asked if isinstance(one, m.SubmitJob)]
    assert len(asked.key) == 32
    assert asked.spec.paths == (b"a",)


def test_what_answers_is_no_admin_api(master: FakeMaster) -> None:
    """An older master, or something else."""
    master.raw = (404, b"no such page\n")
    with client(master) as admin, pytest.raises(ProtocolError, match="status 404") as caught:
        admin.status()
    assert "not older than this one" in caught.value.remedy
    master.raw = (200, b"<html>")
    with client(master) as admin, pytest.raises(ProtocolError, match="invalid reply"):
        admin.status()


def test_nobody_listens(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("s") / "gone.sock"
    with AdminClient.of_socket(str(path)) as admin, pytest.raises(Unreachable):
        admin.status()
