"""The container files agree with the local stack and with lakemark's own configuration."""

import json
import re
from pathlib import Path

import pytest
import yaml

from lakemark.settings.config import load
from lakemark.spark.jars import read_list
from stack.kafka import JARS

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def compose() -> dict:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_the_pipeline_of_the_containers_is_a_valid_one(compose, tmp_path):
    path = tmp_path / "lakemark.yaml"
    path.write_text(compose["configs"]["lakemark.yaml"]["content"])
    config = load(path, {})
    listeners = compose["services"]["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert f"INSIDE://{config.kafka.bootstrap_servers}" in listeners


def test_every_service_and_config_that_is_named_is_there(compose):
    services, configs = compose["services"], compose["configs"]
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
        assert {entry["source"] for entry in service.get("configs", ())} <= set(configs)
        for volume in service.get("volumes", ()):
            assert volume.startswith("./") or volume.split(":")[0] in compose["volumes"]
    for volume in compose["services"]["connector"]["volumes"]:
        if volume.startswith("./"):
            assert (ROOT / volume.split(":")[0]).exists()


def test_the_connectors_placeholders_have_values(compose):
    text = (ROOT / "connect-configs" / "postgres.json").read_text()
    needed = set(re.findall(r"\$\{(\w+)\}", text))
    assert needed == set(compose["services"]["connector"]["environment"])
    assert json.loads(text)["topic.creation.default.replication.factor"] == "1"


def test_nothing_listens_beyond_this_machine(compose):
    for service in compose["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_the_images_have_the_versions_of_the_local_stack(compose):
    (kafka,) = {jar.version for jar in read_list(JARS) if jar.artifact == "kafka_2.13"}
    assert compose["services"]["kafka"]["image"] == f"apache/kafka:{kafka}"
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert f"FROM apache/kafka:{kafka} AS connect" in dockerfile
    targets = set(re.findall(r"^FROM \S+ AS (\w+)", dockerfile, re.MULTILINE))
    built = {s["build"]["target"] for s in compose["services"].values() if "build" in s}
    assert built <= targets
