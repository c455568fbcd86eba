"""The manifests for Kubernetes agree with each other, with the settings and with the HTTP server."""

import re
from pathlib import Path

import pytest
import yaml

from lakemark.cli.check import check
from lakemark.ops.http import gate
from lakemark.settings.config import Config, load_with_origins
from lakemark.settings.units import host_port
from tests.kit.documents import ROOT
from tests.kit.site import Site

FOLDER = ROOT / "deploy" / "kubernetes"
PAGE = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
POD = ("spec", "template", "spec")
# Who a policy may let through: what the settings say lakemark connects to.
DNS, STORE = 53, 443


@pytest.fixture(scope="module")
def found() -> dict[str, dict]:
    """All objects of the manifests by kind; each kind is there once."""
    documents = [
        document
        for file in sorted(FOLDER.glob("*.yaml"))
        for document in yaml.safe_load_all(file.read_text(encoding="utf-8"))
    ]
    kinds = {document["kind"]: document for document in documents}
    assert len(kinds) == len(documents)
    assert all({"apiVersion", "metadata", "kind"} <= set(document) for document in documents)
    return kinds


@pytest.fixture
def pod(found) -> dict:
    return found["Deployment"]["spec"]["template"]["spec"]


@pytest.fixture
def container(pod) -> dict:
    (only,) = pod["containers"]
    return only


@pytest.fixture
def config(found, pod, container, tmp_path) -> Config:
    """The settings, as the volume puts them beside their secrets in the container."""
    (settings,) = [v["projected"] for v in pod["volumes"] if v["name"] == "settings"]
    for source in settings["sources"]:
        for item in source.get("secret", {}).get("items", ()):
            file = tmp_path / item["path"]
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"word-of-{item['key']}")
            file.chmod(settings.get("defaultMode", 0o644))
    for name, text in found["ConfigMap"]["data"].items():
        (tmp_path / name).write_text(text)
    folder, name = container["args"][-1].rsplit("/", 1)
    assert folder == mount(container, "settings")
    loaded = load_with_origins(tmp_path / name, {})
    assert loaded.warnings == []
    assert list(check(loaded.config)) == []
    return loaded.config


def mount(container: dict, volume: str) -> str:
    (path,) = [m["mountPath"] for m in container["volumeMounts"] if m["name"] == volume]
    return path


def probes(container: dict) -> dict[str, dict]:
    return {name: container[f"{name}Probe"] for name in ("startup", "liveness", "readiness")}


def test_settings_are_accepted_and_no_secret_is_written_down(found, config):
    assert config.name == "shop"
    assert config.database.password.get_secret_value() == "word-of-postgres"
    assert config.lake.options()["AWS_SECRET_ACCESS_KEY"] == "word-of-lake-secret"
    for key in ("password", "token", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        said = re.findall(rf'{key}: "?(\S+)', found["ConfigMap"]["data"]["lakemark.yaml"])
        assert said
        assert all(value.startswith("${file:secrets/") for value in said)


def test_every_name_that_is_referred_to_is_there(found, pod, container):
    named = {d["metadata"]["name"] for d in found.values()}
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {m["name"] for m in container["volumeMounts"]} == volumes
    for volume in pod["volumes"]:
        claim = volume.get("persistentVolumeClaim", {}).get("claimName")
        assert claim in {None, found["PersistentVolumeClaim"]["metadata"]["name"]}
        for source in volume.get("projected", {}).get("sources", ()):
            assert source.get("configMap", {"name": "lakemark"})["name"] in named
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for selector in (
        found["Deployment"]["spec"]["selector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
        found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        found["PodMonitor"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector == labels


def test_the_secret_that_the_page_makes_has_every_key(found, pod):
    made = set(re.findall(r"--from-file=([\w-]+)=", PAGE))
    assert made == set(re.findall(r"--from-file=([\w-]+)=", (FOLDER / "lakemark.yaml").read_text()))
    (settings,) = [v["projected"] for v in pod["volumes"] if v["name"] == "settings"]
    (secret,) = [s["secret"] for s in settings["sources"] if "secret" in s]
    assert {item["key"] for item in secret["items"]} == made
    (endpoint,) = found["PodMonitor"]["spec"]["podMetricsEndpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": secret["name"], "key": "http"}
    assert f"secret generic {secret['name']}" in PAGE


def test_ports_and_paths_are_those_of_the_server(found, container, config):
    (port,) = container["ports"]
    host, number = host_port(config.http.bind)
    assert (host, number) == ("0.0.0.0", port["containerPort"])
    site = Site(token="t")
    site.stream()
    for probe in probes(container).values():
        assert probe["httpGet"]["port"] == port["name"]
        assert probe["httpGet"]["path"] in gate.OPEN, "a probe sends no token"
        assert site.get(probe["httpGet"]["path"]).status_code == 200
    (service,) = found["Service"]["spec"]["ports"]
    assert (service["port"], service["targetPort"]) == (number, port["name"])
    (endpoint,) = found["PodMonitor"]["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == port["name"]
    assert site.get(endpoint["path"], headers={"Authorization": "Bearer t"}).status_code == 200
    assert site.get(endpoint["path"]).status_code == 401
    (entry,) = found["NetworkPolicy"]["spec"]["ingress"]
    assert [p["port"] for p in entry["ports"]] == [port["name"]]


def test_a_process_that_stands_by_is_ready_to_take_over(found, container):
    """Else a rollout would wait for it for ever, and no node could be drained."""
    site = Site()
    site.board.pipeline("standby")
    assert found["Deployment"]["spec"]["replicas"] == 2
    assert site.get(container["readinessProbe"]["httpGet"]["path"]).status_code == 200
    assert site.get("/readyz").status_code == 503
    rolling = found["Deployment"]["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxUnavailable": 1, "maxSurge": 0}
    assert found["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1


def test_probes_are_patient(container):
    def patience(name: str) -> int:
        probe = probes(container)[name]
        return probe["periodSeconds"] * probe["failureThreshold"]

    assert patience("startup") >= 600
    assert patience("liveness") >= 600


def test_both_processes_reach_the_checkpoint(found, container, config):
    assert found["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteMany"]
    assert Path(config.checkpoint).is_relative_to(mount(container, "checkpoint"))
    assert Path(mount(container, "scratch")) == Path("/tmp"), "spark.local.dir"


def test_memory_holds_the_driver_and_a_python_for_each_slot(container, config):
    limits = container["resources"]["limits"]
    assert container["resources"]["requests"]["memory"] == limits["memory"]
    slots = int(limits["cpu"]) + config.snapshot.parallelism
    driver = gibibytes(config.spark_options()["spark.driver.memory"])
    assert gibibytes(limits["memory"]) >= driver * 1.2 + slots * 0.25


def gibibytes(text: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(Gi|g)", text).groups()
    return int(number) * {"Gi": 1.0, "g": 1.0}[unit]


def test_the_policy_lets_through_what_the_settings_need(found, config):
    allowed = {
        p["port"] for rule in found["NetworkPolicy"]["spec"]["egress"] for p in rule["ports"]
    }
    _, brokers = host_port(config.kafka.bootstrap_servers)
    connect = int(config.source.connect.url.rpartition(":")[2])
    database = int(re.search(r":(\d+)/", config.database.url)[1])
    assert config.lake.path.startswith("s3://")
    assert allowed == {DNS, STORE, brokers, connect, database}


def test_a_job_that_waits_for_recent_tables_comes_through_and_gives_up_a_try(found):
    (job,) = [
        yaml.safe_load(t)
        for t in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
        if "readyz" in t
    ]
    (entry,) = found["NetworkPolicy"]["spec"]["ingress"]
    let_in = [source.get("podSelector", {}).get("matchLabels") for source in entry["from"]]
    assert job["metadata"]["labels"] in let_in
    (waiting,) = job["spec"]["initContainers"]
    assert "--max-time" in waiting["command"][-1]


def test_what_is_applied_needs_no_operator():
    applied = set(re.findall(r"-f deploy/kubernetes/(\S*)", (FOLDER / "lakemark.yaml").read_text()))
    assert applied == set(re.findall(r"-f deploy/kubernetes/(\S*)", PAGE))
    for name in applied:
        for document in yaml.safe_load_all((FOLDER / name).read_text()):
            assert not document["apiVersion"].startswith("monitoring."), name


def test_the_user_is_the_image_s(pod):
    (uid,) = re.findall(r"--uid (\d+)", (ROOT / "Dockerfile").read_text())
    security = pod["securityContext"]
    assert {security[name] for name in ("runAsUser", "runAsGroup", "fsGroup")} == {int(uid)}
    assert pod["enableServiceLinks"] is False
