"""The examples as they are copied: settings, connectors, signals, readers, containers."""

import ast
import json
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

from lakemark.cli.check import check
from lakemark.connectors.postgres.connector_settings import TRAITS
from lakemark.connectors.registry import CONNECTORS
from lakemark.connectors.suitability import problems_with
from lakemark.converters.avro.registry_settings import settings_of
from lakemark.converters.registry import choice_of, output_choice
from lakemark.settings.config import load, load_with_origins
from lakemark.sink.row_images import cdc_type
from lakemark.snapshot import signals
from stack import object_store
from tests.kit.documents import ROOT, Block, blocks
from tests.kit.page_shell import with_names

EXAMPLES = ROOT / "examples"
SECRETS = {
    "SHOP_PASSWORD": "s",
    "STORE_USER": "u",
    "STORE_PASSWORD": "p",
    "REGISTRY_LOGIN": "me:secret",
}
configs = pytest.mark.parametrize("folder", ["local", "s3", "avro"])


def of(folder: str, language: str) -> list[Block]:
    """The fenced pieces of an example's page."""
    return [b for b in blocks(language) if b.page == EXAMPLES / folder / "README.md"]


# --- settings ---------------------------------------------------------------------------------


@configs
def test_settings_are_accepted_without_a_word(folder):
    loaded = load_with_origins(EXAMPLES / folder / "lakemark.yaml", SECRETS)
    assert loaded.warnings == []
    assert list(check(loaded.config)) == []


@pytest.mark.slow
@configs
def test_validate_says_that_they_can_be_started(folder):
    done = subprocess.run(
        [sys.executable, "-m", "lakemark", "validate"],
        cwd=EXAMPLES / folder,
        env=SECRETS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "ok: shop can be started")


@pytest.mark.parametrize("folder", ["local", "avro"])
def test_the_connector_fits_the_settings_and_the_database(folder):
    connector = json.loads((EXAMPLES / folder / "connector.json").read_text())
    config = load(EXAMPLES / folder / "lakemark.yaml", SECRETS)
    found = problems_with(connector, config, kinds=CONNECTORS, traits=TRAITS)
    lost = [p.hint for p in found if not p.warning or "NULL" not in p.message]
    assert lost == [], "but for what Apicurio's converter itself loses"
    sql = (EXAMPLES / "local" / "setup.sql").read_text()
    tables = [name.removeprefix("public.") for name in connector["table.include.list"].split(",")]
    assert f"CREATE PUBLICATION {connector['publication.name']} FOR TABLE {', '.join(tables)};" in (
        sql
    )
    for user in (connector["database.user"], "lakemark"):
        assert re.search(rf"CREATE ROLE {user} LOGIN", sql)
    assert f"//{'lakemark'}@localhost:5432/{connector['database.dbname']}" in config.database.url


def test_the_example_in_avro_is_the_local_one_but_for_its_converters():
    plain, avro = (
        json.loads((EXAMPLES / folder / "connector.json").read_text())
        for folder in ("local", "avro")
    )
    told = json.loads((ROOT / "connect-configs" / "postgres-avro.json").read_text())
    differ = {name: value for name, value in avro.items() if plain.get(name) != value}
    address = "http://localhost:8081/apis/registry/v2"
    wanted = {name: told[name].replace("${REGISTRY_URL}", address) for name in differ}
    assert differ == wanted
    config = load(EXAMPLES / "avro" / "lakemark.yaml", SECRETS)
    for side in ("key", "value"):
        assert differ[f"{side}.converter.apicurio.registry.url"] == address
    read = settings_of(choice_of(avro, config.source.converter_options()).options)
    assert read.urls == ("http://localhost:8081/apis/ccompat/v7",)
    assert (read.login.user, read.login.password) == ("me", "secret")
    written = output_choice(
        avro,
        config.source.converter_options(),
        format_=config.output.format,
        told=config.output.converter_options(),
    )
    assert settings_of(written.options).urls == read.urls


# --- readers ----------------------------------------------------------------------------------


def cdc(number: int) -> dict:
    return {
        "position": b"%d" % number,
        "op": "c",
        "source_ts": datetime(2026, 1, number, tzinfo=UTC),
    }


@pytest.fixture
def lake(tmp_path) -> Path:
    """Two tables as the pipeline of the example writes them."""
    kind = cdc_type(deletes="hard")
    customers = {
        "id": [1, 2],
        "name": ["Ada", "Grace"],
        "balance": pa.array([Decimal("12.50"), Decimal(99)], pa.decimal128(12, 2)),
        "_cdc": pa.array([cdc(1), cdc(2)], kind),
    }
    orders = {
        "id": [10, 11],
        "customer": [1, 1],
        "placed": [datetime(2026, 1, 2, 10, tzinfo=UTC), datetime(2026, 1, 3, tzinfo=UTC)],
        "_cdc": pa.array([cdc(1), cdc(2)], kind),
    }
    for name, columns in (("customers", customers), ("orders", orders)):
        write_deltalake(f"{tmp_path}/lake/public/{name}", pa.table(columns))
    return tmp_path


SAID = {
    "with_delta_rs.py": [
        "version 0, 2 rows",
        "{'id': 2, 'name': 'Grace', 'balance': Decimal('99.00')}",
    ],
    "with_polars.py": [
        "│ 2   ┆ Grace ┆ 99.00         │",
        "│ 2   ┆ c   ┆ 2026-01-02 00:00:00 UTC │",
    ],
    "with_duckdb.py": ["│ Ada     │      2 │", "│ Grace   │      0 │"],
}


@pytest.mark.slow
@pytest.mark.parametrize("script", SAID)
def test_readers_show_the_tables(lake, script):
    (line,) = [
        row
        for row in (EXAMPLES / "reading" / "README.md").read_text().splitlines()
        if f"({script})" in row
    ]
    command = shlex.split(re.search(r"`(python [^`]+)`", line)[1])
    assert command[:2] == ["python", script]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "reading" / script), *command[2:]],
        cwd=lake,
        env={"POLARS_FMT_TABLE_FORMATTING": "UTF8_FULL_CONDENSED", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for line in SAID[script]:
        assert line in done.stdout


def test_the_page_names_every_reader():
    page = (EXAMPLES / "reading" / "README.md").read_text()
    assert {p.name for p in (EXAMPLES / "reading").glob("*.py")} == {
        *re.findall(r"\]\((\w+\.py)\)", page)
    }


# --- signals ----------------------------------------------------------------------------------


def test_lines_of_kcat_are_signals_that_are_read():
    lines = [line for b in of("signals", "bash") for line in b.text.splitlines() if "-P" in line]
    assert len(lines) == 5
    for line in lines:
        echo, value, pipe, *kcat = shlex.split(line)
        assert (echo, pipe) == ("echo", "|")
        options = dict(zip(kcat[2::2], kcat[3::2], strict=True))
        assert options["-t"] == "shop.signals"
        read = signals.read(options["-k"].encode(), value.encode(), pipeline="shop", unnamed="x")
        assert not isinstance(read, signals.Rejection | None), line


def test_what_the_producer_sends_is_read_and_its_key_is_the_pipeline():
    tree = ast.parse((EXAMPLES / "signals" / "send_signal.py").read_text())
    (made,) = [
        n.value
        for n in ast.walk(tree)
        if isinstance(n, ast.Assign) and "signal" in ast.unparse(n.targets[0])
    ]
    value = eval(
        ast.unparse(made), {"uuid": __import__("uuid"), "str": str, "tables": ["public.t"]}
    )
    read = signals.read(b"shop", json.dumps(value).encode(), pipeline="shop", unnamed="x")
    assert not isinstance(read, signals.Rejection)
    assert (read.id, list(read.data_collections)) == (value["id"], ["public.t"])


# --- containers -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def both() -> tuple[dict, dict]:
    """The repository's services, and what the example lays over them."""
    files = (ROOT / "docker-compose.yml", EXAMPLES / "s3" / "docker-compose.yml")
    base, over = (yaml.safe_load(file.read_text()) for file in files)
    return base, over


def test_the_store_fits_into_the_stack(both):
    base, over = both
    services = {**base["services"], **over["services"]}
    for service in over["services"].values():
        assert set(service.get("depends_on", ())) <= set(services)
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            there = (
                (ROOT / source).is_file() if source.startswith("./") else source in over["volumes"]
            )
            assert there, volume
    assert not base["volumes"].keys() & over["volumes"].keys()
    taken = [p.split(":")[1] for s in services.values() for p in s.get("ports", ())]
    assert len(taken) == len(set(taken))
    assert over["services"]["bucket"]["image"] == over["services"]["store"]["image"]


def test_the_pipeline_in_containers_finds_store_bucket_and_servers(both):
    base, over = both
    ours = over["services"]["lakemark"]
    _, inside, _ = ours["volumes"][0].split(":")
    assert ours["command"] == ["run", "-c", inside]
    config = load(EXAMPLES / "s3" / "lakemark.yaml", ours["environment"])
    plain = yaml.safe_load(base["configs"]["lakemark.yaml"]["content"])
    assert config.kafka.bootstrap_servers == plain["kafka"]["bootstrap_servers"]
    assert config.source.connect.url == plain["source"]["connect"]["url"]
    assert config.database.url == plain["database"]["url"]
    assert config.http.bind == plain["http"]["bind"]
    assert config.checkpoint == plain["checkpoint"]
    made = over["services"]["bucket"]
    host, _, bucket = made["entrypoint"][-1].partition("/")
    assert config.lake.path.startswith(f"s3://{bucket}/")
    store = over["services"]["store"]["environment"]
    user, password = store["MINIO_ROOT_USER"], store["MINIO_ROOT_PASSWORD"]
    address = config.lake.options()["AWS_ENDPOINT_URL"].removeprefix("http://")
    assert made["environment"][f"MC_HOST_{host}"] == f"http://{user}:{password}@{address}"
    assert address.split(":")[0] in over["services"]
    assert config.lake.options()["AWS_ACCESS_KEY_ID"] == user
    assert config.lake.options()["AWS_SECRET_ACCESS_KEY"] == password


def test_the_snippet_for_the_store_asks_as_the_pipeline_writes(both):
    _, over = both
    ours = over["services"]["lakemark"]
    config = load(EXAMPLES / "s3" / "lakemark.yaml", ours["environment"])
    (block,) = of("s3", "python")
    (given,) = [
        n.value
        for n in ast.parse(block.text).body
        if isinstance(n, ast.Assign) and n.targets[0].id == "store"
    ]
    store, written = ast.literal_eval(given), config.lake.options()
    for name in ("AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert store[name] == written[name]
    port = store["AWS_ENDPOINT_URL"].rpartition(":")[2]
    assert f"127.0.0.1:{port}:{port}" in over["services"]["store"]["ports"]
    assert f'"{config.lake.path}/public/customers"' in block.text


@pytest.mark.slow
def test_the_snippet_for_the_store_prints_the_rows():
    (block,) = of("s3", "python")
    rows = [{"id": n, "name": name} for n, name in enumerate(("Ada", "Grace", "Barbara"), 1)]
    with object_store.serving() as store:
        path = load(EXAMPLES / "s3" / "lakemark.yaml", SECRETS).lake.path
        write_deltalake(
            f"{path}/public/customers", pa.Table.from_pylist(rows), storage_options=store.options
        )
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                with_names(block.text, {"http://localhost:9000": store.address}),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert sorted(ast.literal_eval(done.stdout), key=lambda row: row["id"]) == rows
