"""The chart: every version of Kubernetes accepts what it renders, its containers have few rights,
it has no secret, and it refuses values that cannot work with one line."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from cachefs.kube import names
from scripts import helm_values
from tests.deploy.chart import (
    CHART,
    EVERYTHING,
    POD_MONITOR,
    Object,
    containers,
    find,
    pod_spec,
    render,
    run_helm,
    template,
)
from tests.kube.real.operator.lab import rights
from tests.unit.cli.test_documented_commands import problem

VERSIONS: Final = [f"1.{minor}" for minor in range(30, 38)]
ALL: Final = (*EVERYTHING, "--api-versions", POD_MONITOR)
FORMS: Final = {"defaults": (), "everything": ALL}
FIXED: Final = Path(__file__).with_name("chart_fixed.yaml")
SPECS: Final = ("StatefulSet", "DaemonSet", "Deployment", "CSIDriver")
FIXED_FIELDS: Final = (
    "selector", "serviceName", "volumeClaimTemplates", "podManagementPolicy", "attachRequired",
    "volumeLifecycleModes", "provisioner", "parameters", "reclaimPolicy", "volumeBindingMode",
    "roleRef",
)  # fmt: skip
SERVER_USER: Final = 65532
ROOTS: Final = {"csi", "fuse", "holder", "directories"}  # containers that run as root
MIB: Final = 1 << 20


@pytest.fixture(scope="module", params=FORMS.values(), ids=FORMS)
def things(request: pytest.FixtureRequest) -> list[Object]:
    return render(*request.param)


@pytest.fixture(scope="module")
def defaults() -> list[Object]:
    return render()


# ---- objects -------------------------------------------------------------------------------------


def test_helm_finds_nothing_to_say() -> None:
    for values in ((), EVERYTHING):
        done = run_helm("lint", "--strict", CHART, *values)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_each_version_of_kubernetes_accepts_every_object(
    version: str, form: tuple[str | Path, ...]
) -> None:
    found = render("--kube-version", version, "--include-crds", *form)
    kinds = {thing["kind"] for thing in found}
    assert {"StatefulSet", "DaemonSet", "Deployment", "CSIDriver", "StorageClass"} <= kinds
    for thing in found:
        if thing["kind"] != "PodMonitor":
            kubernetes_validate.validate(thing, version, strict=True)


def test_a_misspelt_field_is_found(defaults: list[Object]) -> None:
    holder = json.loads(json.dumps(find(defaults, "DaemonSet", "-holder")))
    holder["spec"]["updateStratgy"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(holder, VERSIONS[-1], strict=True)


def test_pod_monitors_are_made_where_their_api_is() -> None:
    assert not [one for one in render(*EVERYTHING) if one["kind"] == "PodMonitor"]
    found = [one for one in render(*ALL) if one["kind"] == "PodMonitor"]
    assert len(found) == 4
    for monitor in found:
        ports = {one["port"] for one in monitor["spec"]["podMetricsEndpoints"]}
        assert ports <= _ports(render(*ALL), monitor["spec"]["selector"]["matchLabels"])


def _ports(things: list[Object], labels: dict[str, str]) -> set[str]:
    return {
        port["name"]
        for thing in things
        if pod_spec(thing) and thing["spec"].get("selector", {}).get("matchLabels") == labels
        for container in thing["spec"]["template"]["spec"]["containers"]
        for port in container.get("ports", ())
    }


def test_names_stay_short_enough() -> None:
    done = run_helm("template", "a" * 53, CHART, *ALL)
    assert done.returncode == 0, done.stderr
    for thing in yaml.safe_load_all(done.stdout):
        assert len(thing["metadata"]["name"]) <= (52 if thing["kind"] == "CronJob" else 63)


def test_names_and_paths_may_look_like_other_yaml() -> None:
    """A namespace may be a number, and a path may have what begins a comment or a mapping."""
    paths = ["/sets/a #1", "/sets/b: 2"]
    preload = ("--set-json", f"preload={json.dumps([{'name': 'one', 'paths': paths}])}")
    done = run_helm("template", "7", CHART, "--namespace", "123", *ALL, *preload)
    assert done.returncode == 0, done.stderr
    things = [*yaml.safe_load_all(done.stdout)]
    for thing in things:
        if thing["kind"] != "PodMonitor":
            kubernetes_validate.validate(thing, VERSIONS[-1], strict=True)
    (load,) = [one for _, _, one in containers(things) if one["name"] == "load"]
    assert [word.partition("/sets")[2] for word in load["args"][-2:]] == ["/a #1", "/b: 2"]


def test_selectors_stay_when_values_change(defaults: list[Object]) -> None:
    """Kubernetes refuses an upgrade that changes the selector of an object."""
    others = render(*ALL)
    for kind, name in (
        ("StatefulSet", "-master"),
        ("DaemonSet", "-worker"),
        ("DaemonSet", "-node"),
        ("DaemonSet", "-holder"),
        ("Deployment", "-controller"),
    ):
        first, second = find(defaults, kind, name), find(others, kind, name)
        assert first["spec"]["selector"] == second["spec"]["selector"]
        labels = first["spec"]["template"]["metadata"]["labels"]
        assert first["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_what_kubernetes_does_not_let_change_stays(defaults: list[Object]) -> None:
    """Else an upgrade from an earlier version of the chart is refused."""
    assert yaml.safe_load(FIXED.read_text()) == [*fixed_fields(defaults)]


def fixed_fields(things: list[Object]) -> Iterator[Object]:
    """Yields the names of the objects with those of their fields that cannot change. Hooks and jobs
    are made anew."""
    for thing in sorted(things, key=lambda one: (one["kind"], one["metadata"]["name"])):
        if thing["kind"] != "Job" and "annotations" not in thing["metadata"]:
            where = thing["spec"] if thing["kind"] in SPECS else thing
            fields = {name: where[name] for name in FIXED_FIELDS if name in where}
            yield {"kind": thing["kind"], "name": thing["metadata"]["name"], **fields}


# ---- rights --------------------------------------------------------------------------------------


def test_containers_have_few_rights(things: list[Object]) -> None:
    seen = set()
    for name, spec, container in containers(things):
        seen.add(container["name"])
        given = container["securityContext"]
        assert given["readOnlyRootFilesystem"] is True, name
        if container["name"] == "csi":
            assert given == {"privileged": True, "readOnlyRootFilesystem": True}
            continue
        assert given["allowPrivilegeEscalation"] is False, name
        added = {"add": ["SYS_ADMIN"]} if container["name"] == "fuse" else {}
        assert given["capabilities"] == {"drop": ["ALL"], **added}, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not given.get("privileged"), name
    assert seen >= {"csi", "fuse", "holder", "master", "worker", "directories", "controller"}


def test_servers_run_as_an_ordinary_user(things: list[Object]) -> None:
    for name, spec, container in containers(things):
        given = {**spec["securityContext"], **container["securityContext"]}
        if container["name"] in ROOTS:
            assert given["runAsUser"] == 0, name
        else:
            assert (given["runAsUser"], given["runAsNonRoot"]) == (SERVER_USER, True), name


def test_only_the_controller_and_the_check_have_accounts(things: list[Object]) -> None:
    for thing in things:
        spec = pod_spec(thing)
        if spec is not None:
            has_account = thing["metadata"]["name"].endswith(("-controller", "-uninstall"))
            assert spec["automountServiceAccountToken"] is has_account, thing["metadata"]["name"]
            assert ("serviceAccountName" in spec) is has_account
    assert not [one for one in things if one["kind"] == "Secret"]


def test_the_controller_has_the_rights_of_its_page(defaults: list[Object]) -> None:
    role, local = rights()
    assert find(defaults, "ClusterRole", "-controller")["rules"] == role["rules"]
    assert find(defaults, "Role", "-controller")["rules"] == local["rules"]


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_check_before_an_uninstall_looks_for_datasets_of_our_controller(
    is_enabled: bool,
) -> None:
    things = render("--set", f"controller.enabled={str(is_enabled).lower()}")
    jobs = [one for one in things if one["kind"] == "Job"]
    (check,) = (one for one in jobs if one["metadata"]["name"].endswith("-uninstall"))
    (container,) = check["spec"]["template"]["spec"]["containers"]
    assert ("--controller" in container["command"]) is is_enabled
    rules = find(things, "ClusterRole", "-uninstall")["rules"]
    assert {"apiGroups": ["cachefs.io"], "resources": ["datasets"], "verbs": ["list"]} in rules


def test_only_the_driver_propagates_mounts(things: list[Object]) -> None:
    found = {
        container["name"]: mount["mountPropagation"]
        for _, _, container in containers(things)
        for mount in container.get("volumeMounts", ())
        if "mountPropagation" in mount
    }
    assert found == {"csi": "Bidirectional", "fuse": "HostToContainer"}


def test_only_the_driver_sees_the_directories_of_pods(things: list[Object]) -> None:
    """The kubelet's directory has the secrets of all pods of the node, and the node's own key."""
    seen = {
        (container["name"], volume["hostPath"]["path"])
        for _, spec, container in containers(things)
        for mount in container.get("volumeMounts", ())
        for volume in spec["volumes"]
        if volume["name"] == mount["name"]
        and "kubelet" in volume.get("hostPath", {}).get("path", "")
    }
    kubelet = min((path for _, path in seen), key=len)
    assert seen == {("csi", kubelet), ("fuse", f"{kubelet}/plugins/csi.cachefs.io")}


def test_secrets_are_named_and_not_written() -> None:
    """Only volumes and monitors name them; a key in the place of a name is refused."""
    named = "credentials.named[0].name=a,credentials.named[0].secretName"
    for value in ("token.secretName", "credentials.secretName", "tls.masterSecretName", named):
        assert template("--set-string", f"{value}=AKIAPLANTEDPLANTED00").returncode != 0
    rendered = template(*ALL).stdout
    what = ("token", "credentials", "master", "worker", "hook", "team")
    planted = {f"planted-{one}" for one in what}
    assert set(re.findall(r"planted-\w+", rendered)) == planted
    for thing in yaml.safe_load_all(rendered):
        for text in _strings_of(thing, "env") + _strings_of(thing, "args"):
            assert "planted" not in text


def test_servers_have_the_named_credentials() -> None:
    """Each as a directory of files that cannot be written; no other container has them."""
    found: dict[str, dict[str, str]] = {}
    for _, spec, container in containers(render(*ALL)):
        volumes = {one["name"]: one for one in spec.get("volumes", ())}
        for mount in container.get("volumeMounts", ()):
            directory, _, name = mount["mountPath"].rpartition("/")
            if directory == "/etc/cachefs/credentials.d":
                assert mount["readOnly"] is True
                secret = volumes[mount["name"]]["secret"]
                found.setdefault(container["name"], {})[name] = secret["secretName"]
    named = {"hook": "planted-hook", "Team.A": "planted-team"}
    assert found == {"master": named, "worker": named}


def _strings_of(thing: Any, key: str) -> list[str]:
    """Returns what stands at a key, anywhere in an object, as text."""
    if isinstance(thing, list):
        return [text for one in thing for text in _strings_of(one, key)]
    if not isinstance(thing, dict):
        return []
    own = [str(thing[key])] if key in thing else []
    return own + _strings_of([*thing.values()], key)


# ---- what is started -----------------------------------------------------------------------------


def test_every_command_line_is_known(things: list[Object]) -> None:
    """With the values of the variables that Kubernetes expands."""
    for name, _, container in containers(things):
        if "command" not in container:
            words = [word.replace("$(POD_IP)", "10.0.0.1") for word in container["args"]]
            assert problem(shlex.join(words)) == "", name
    modules = {c["command"][3] for _, _, c in containers(things) if "-m" in c.get("command", ())}
    assert modules == {"cachefs.holder", "cachefs.kube.volume_users"}


def test_parts_have_the_same_master(things: list[Object]) -> None:
    """It stands in the names of volumes."""
    given = {
        word.partition("=")[2]
        for _, _, container in containers(things)
        for word in container.get("args", ())
        if word.startswith("--master=")
    }
    assert len(given) == 1


def test_the_memory_of_a_worker_is_that_of_its_tiers_and_its_budget() -> None:
    (worker,) = [c for _, _, c in containers(render(*ALL)) if c["name"] == "worker"]
    tiers = (16 << 10) + 512
    assert worker["resources"]["requests"]["memory"] == f"{tiers + 4096}Mi"
    assert worker["resources"]["limits"] == {"memory": "24Gi", "cpu": "8"}
    (limit,) = [word for word in worker["args"] if word.startswith("--memory-limit=")]
    assert tiers + 2048 < int(re.sub(r"\D", "", limit)) < tiers + 4096
    assert [word for word in worker["args"] if word.startswith("--tier=")] == [
        "--tier=mem:/var/cache/cachefs/0/cache:16GiB",
        "--tier=mem:/var/cache/cachefs/1/cache:512MiB",
        "--tier=ssd:/var/cache/cachefs/2/cache:1TiB:scrub=8MiB:high=0.9",
    ]


def test_upgrades_leave_the_mounts_alone(defaults: list[Object]) -> None:
    node = find(defaults, "DaemonSet", "-node")["spec"]
    surge = {"maxSurge": 1, "maxUnavailable": 0}
    assert node["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": surge}
    (fuse,) = [one for one in node["template"]["spec"]["containers"] if one["name"] == "fuse"]
    assert fuse["readinessProbe"]["exec"]["command"] == ["test", "-e", "/tmp/ready"]
    assert "--ready-file=/tmp/ready" in fuse["args"]
    assert "limits" not in fuse["resources"]
    holder = find(defaults, "DaemonSet", "-holder")["spec"]
    assert holder["updateStrategy"] == {"type": "OnDelete"}


def test_a_preload_that_changed_is_another_job() -> None:
    one = ("--set", "preload[0].name=a,preload[0].paths[0]=/a")
    jobs = [
        thing["metadata"]["name"]
        for tag in ("1", "2", "2")
        for thing in render(*one, "--set-string", f"image.tag={tag}")
        if thing["kind"] == "Job" and "-preload-" in thing["metadata"]["name"]
    ]
    assert len(jobs) == 3
    assert len(set(jobs)) == 2


@pytest.mark.parametrize("schedule", ["", "0 3 * * *"])
@pytest.mark.parametrize(("given", "limit"), [("", 3), (",preload[0].retries=0", 0)])
def test_a_preload_is_tried_again_as_often_as_it_says(
    schedule: str, given: str, limit: int
) -> None:
    when = f",preload[0].schedule={schedule}" if schedule else ""
    one = f"preload[0].name=a,preload[0].paths[0]=/a{given}{when}"
    (found,) = [thing for thing in render("--set", one) if "-preload-" in thing["metadata"]["name"]]
    spec = found["spec"]["jobTemplate"]["spec"] if schedule else found["spec"]
    assert spec["backoffLimit"] == limit


def test_the_driver_and_the_class_have_the_names_of_the_program(defaults: list[Object]) -> None:
    assert find(defaults, "CSIDriver", "")["metadata"]["name"] == names.DRIVER
    assert find(defaults, "StorageClass", "")["provisioner"] == names.DRIVER


# ---- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ("workers.port=1", "additional properties 'workers' not allowed"),
        ("worker.memoryBudget=2GB", "at '/worker/memoryBudget'"),
        ("worker.tiers={}", "at '/worker/tiers"),
        ("node.linger=soon", "at '/node/linger'"),
        ("controller.replicas=0", "at '/controller/replicas'"),
        ("kubeletDir=var/lib/kubelet", "at '/kubeletDir'"),
        ("token.secretName=", "at '/token/secretName'"),
        ("node.fuse.resources.limits.memory=1Gi", "additional properties 'limits' not allowed"),
        ("preload[0].name=a", "at '/preload/0': missing property 'paths'"),
        ("worker.memoryBudget=100MiB", "worker.memoryBudget: 100MiB is too little"),
        ("worker.resources.limits.memory=1Gi", "give at least 2048Mi, or leave it out"),
        ("worker.resources.limits.memory=1500M", "write it in Mi, Gi or Ti"),
        ("tls.masterSecretName=a", "TLS needs the certificates of both"),
        ("worker.tiers[0].type=ssd,worker.tiers[0].size=1GiB", "a hostPath or on a claim"),
        (
            "worker.tiers[0].type=mem,worker.tiers[0].size=1GiB,worker.tiers[0].claim.storage=2Gi",
            "a tier in memory is on a tmpfs of the node",
        ),
    ],
)
def test_a_bad_value_is_refused_with_one_line(values: str, line: str) -> None:
    done = template("--set", values)
    assert done.returncode != 0
    assert len([one for one in done.stderr.splitlines() if line in one]) == 1, done.stderr


def test_two_tiers_of_one_directory_are_refused(tmp_path: Path) -> None:
    tier = {"type": "ssd", "size": "1GiB", "hostPath": "/a"}
    path = tmp_path / "values.yaml"
    path.write_text(json.dumps({"worker": {"tiers": [tier, tier]}}))
    assert "/a is the hostPath of another tier" in template("--values", path).stderr


def test_the_page_of_the_values_is_that_of_the_schema() -> None:
    assert helm_values.PAGE.read_text() == helm_values.page()


def test_every_value_has_a_meaning_and_a_default() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for row in helm_values.rows(schema, values):
        assert row.meaning.endswith("."), row.name
    assert _leaves(values) <= {row.name for row in helm_values.rows(schema, values)}


def _leaves(values: Object, name: str = "") -> set[str]:
    found = set()
    for key, value in values.items():
        found.add(f"{name}{key}")
        if isinstance(value, dict) and key not in ("resources", "parameters", "nodeSelector"):
            found |= _leaves(value, f"{name}{key}.")
    return found
