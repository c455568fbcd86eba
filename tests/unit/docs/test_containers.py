"""The container files agree with the local stack and with lakemark's own configuration."""

import json
import re
from pathlib import Path
from string import Template
from urllib.parse import urlsplit

import pytest
import yaml

from lakemark.converters.avro.registry_settings import settings_of
from lakemark.converters.registry import choice_of
from lakemark.settings.config import load
from lakemark.spark.jars import read_list
from stack.connect import PLUGINS
from stack.kafka import JARS
from stack.registry import VERSIONS

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def compose() -> dict:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


PRODUCTS = {
    "postgres": ("lakemark.yaml", "connector"),
    "mariadb": ("lakemark-mariadb.yaml", "connector-mariadb"),
    "postgres-avro": ("lakemark-avro.yaml", "connector-avro"),
}
"""lakemark's configuration and what registers the connector, by the connector's file."""

PROFILES = {
    "mariadb": {"mariadb", "connector-mariadb", "lakemark-mariadb"},
    "avro": {"registry", "connector-avro", "lakemark-avro"},
}
"""The services that come only where their profile is asked for."""


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_pipeline_of_the_containers_is_a_valid_one(compose, product, tmp_path):
    path = tmp_path / "lakemark.yaml"
    path.write_text(compose["configs"][PRODUCTS[product][0]]["content"])
    config = load(path, {})
    registers = compose["services"][PRODUCTS[product][1]]["command"][0]
    assert f"/connectors/{config.source.connect.connector}/config" in registers
    listeners = compose["services"]["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert f"INSIDE://{config.kafka.bootstrap_servers}" in listeners


def test_every_service_and_config_that_is_named_is_there(compose):
    services, configs = compose["services"], compose["configs"]
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
        assert {entry["source"] for entry in service.get("configs", ())} <= set(configs)
        for volume in service.get("volumes", ()):
            assert volume.startswith("./") or volume.split(":")[0] in compose["volumes"]
    for _, connector in PRODUCTS.values():
        for volume in services[connector]["volumes"]:
            assert (ROOT / volume.split(":")[0]).exists()


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_connectors_placeholders_have_values(compose, product):
    text = (ROOT / "connect-configs" / f"{product}.json").read_text()
    needed = set(re.findall(r"\$\{(\w+)\}", text))
    assert needed == set(compose["services"][PRODUCTS[product][1]]["environment"])
    assert json.loads(text)["topic.creation.default.replication.factor"] == "1"


def test_nothing_listens_beyond_this_machine_and_no_port_is_taken_twice(compose):
    ports = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert len({port.split(":")[1] for port in ports}) == len(ports)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_comes_only_where_it_is_asked_for(compose, profile):
    services = compose["services"]
    asked = {name for name, service in services.items() if service.get("profiles") == [profile]}
    assert asked == PROFILES[profile]
    for name in services.keys() - asked:
        assert not asked & set(services[name].get("depends_on", ()))
    header = (ROOT / "docker-compose.yml").read_text().partition("name: lakemark")[0]
    assert f"docker compose --profile {profile} up --build lakemark-{profile}\n" in header


def test_the_users_of_mariadb_have_the_rights_that_its_page_asks_for(compose):
    page = (ROOT / "docs" / "mysql.md").read_text()
    (rights,) = re.findall(r"GRANT (.*) ON \*\.\* TO debezium", page)
    assert f"GRANT {rights} ON *.* TO debezium" in compose["configs"]["mariadb.sql"]["content"]
    settings = dict(re.findall(r"^(log_bin|binlog_\w+|gtid_\w+) = (\w+)", page, re.MULTILINE))
    command = compose["services"]["mariadb"]["command"]
    for name in ("log_bin", "binlog_format", "binlog_row_image", "gtid_strict_mode"):
        assert f"--{name.replace('_', '-')}={settings[name]}" in command


def test_connect_and_lakemark_reach_the_registry_where_it_listens(compose):
    """Its address comes to lakemark with the connector's settings."""
    services = compose["services"]
    environment = services["connector-avro"]["environment"]
    address = urlsplit(environment["REGISTRY_URL"])
    assert f":{address.port}" in services[address.hostname]["ports"][0].partition("8081")[2]
    config = (ROOT / "connect-configs" / "postgres-avro.json").read_text()
    choice = choice_of(json.loads(Template(config).substitute(environment)), {})
    assert settings_of(choice.options).urls == (environment["REGISTRY_URL"],)
    probe = services["registry"]["healthcheck"]["test"][-1]
    assert f"/dev/tcp/localhost/{address.port}" in probe
    assert f"GET {address.path}/system/info " in probe


def test_what_the_containers_keep_is_on_volumes(compose):
    """The image's own folders are not lakemark's to write."""
    for name, _ in PRODUCTS.values():
        config = yaml.safe_load(compose["configs"][name]["content"])
        folders = [config["lake"]["path"], config["checkpoint"]]
        folders += filter(None, [config["source"].get("converter", {}).get("registry.folder")])
        assert all(folder.startswith("/data/") for folder in folders)
    assert config["source"]["converter"], "the last one has a registry"


def test_the_images_have_the_versions_of_the_local_stack(compose):
    (kafka,) = {jar.version for jar in read_list(JARS) if jar.artifact == "kafka_2.13"}
    assert compose["services"]["kafka"]["image"] == f"apache/kafka:{kafka}"
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert f"FROM apache/kafka:{kafka} AS connect" in dockerfile
    (registry,) = read_list(ROOT / "stack" / f"apicurio-{next(iter(VERSIONS))}.json")
    assert compose["services"]["registry"]["image"].endswith(f":{registry.version}")
    copied = {*re.findall(r"'(\w+)'", dockerfile.partition("debezium_plugins(name)")[2])}
    assert {"postgres", "mariadb", "avro"} == copied - {"plugins"} <= {*PLUGINS}
    targets = set(re.findall(r"^FROM \S+ AS (\w+)", dockerfile, re.MULTILINE))
    built = {s["build"]["target"] for s in compose["services"].values() if "build" in s}
    assert built <= targets
