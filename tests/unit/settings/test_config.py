"""The configuration: what is accepted, where values come from, and how mistakes are told."""

import json
import os
import pickle
import re
import textwrap
from datetime import timedelta
from pathlib import Path

import pytest

from lakemark.connectors.postgres.schema_file import read_schema_file
from lakemark.plans import engine_of
from lakemark.settings import masking
from lakemark.settings.config import Config, leaves, load, load_with_origins
from lakemark.settings.layers import InvalidConfig, Mistake
from lakemark.settings.locate import config_file
from lakemark.settings.units import SettingsSchema
from lakemark.sink.names import folder_of
from tests.kit.table_states import table_state

ROOT = Path(__file__).parents[3]

SMALL = """\
name: shop
kafka: {bootstrap_servers: localhost:9092}
source:
  connect: {url: http://localhost:8083, connector: shop}
lake: {path: ./lake}
checkpoint: ./checkpoint
"""


@pytest.fixture
def write(tmp_path):
    def _write(text: str) -> Path:
        file = tmp_path / "lakemark.yaml"
        file.write_text(text)
        return file

    return _write


def problems(file: Path | None, environ: dict[str, str] | None = None) -> dict[str, Mistake]:
    with pytest.raises(InvalidConfig) as caught:
        load(file, environ or {})
    found = caught.value.problems
    assert len({p.path for p in found}) == len(found), "a setting is reported twice"
    return {p.path: p for p in found}


# --- what is accepted -------------------------------------------------------------------------


def test_small_configuration_has_the_documented_defaults(write, tmp_path):
    config = load(write(SMALL), {})
    assert config.lake.path == str(tmp_path / "lake")
    assert config.checkpoint == str(tmp_path / "checkpoint")
    assert config.lake.deletes == "hard"
    assert config.snapshot.chunk_rows == 100_000
    assert config.snapshot.window_interval == timedelta(seconds=1)
    assert config.stream.max_events_per_batch == 200_000
    assert config.stream.max_event_bytes == 4 * 1024**2
    assert config.stream.shards == 2
    assert config.dead_letters.max_share == 0.5
    assert config.database is None
    assert config.topics.dead_letters == "shop.dead-letters"


def test_the_design_s_example_with_a_placeholder_in_a_flow_mapping(write, tmp_path):
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "pg").write_text("s3cret-word\n")
    file = write(
        SMALL
        + "database: {url: postgresql://lakemark@localhost:5432/shop, password: ${file:secrets/pg}}"
        "   # a comment\nsnapshot: {chunk_rows: 10000, parallelism: 4, chunk_delay: 0s}\n"
    )
    loaded = load_with_origins(file, {})
    assert loaded.config.database is not None
    assert loaded.config.database.password.get_secret_value() == "s3cret-word"
    assert loaded.origins["database.password"] == "lakemark.yaml:7, ${file:secrets/pg}"
    assert loaded.config.snapshot.chunk_delay == timedelta()


def test_the_shipped_example_is_valid(tmp_path):
    text = (ROOT / "lakemark.example.yaml").read_text()
    (tmp_path / "lakemark.yaml").write_text(text)
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "postgres").write_text("x")
    assert load(tmp_path / "lakemark.yaml", {}).name == "shop"


def test_an_object_store_address_stays_as_it_is(write):
    config = load(write(SMALL.replace("./lake", "s3a://bucket/lake/")), {})
    assert config.lake.path == "s3a://bucket/lake"
    assert folder_of(config.lake, "public.orders") == "s3a://bucket/lake/public/orders"


def test_a_table_may_differ_from_the_rest(write, tmp_path):
    text = SMALL.replace(
        "lake: {path: ./lake}",
        "lake:\n  path: ./lake\n  tables:\n    public.big: {engine: spark-merge, deletes: soft}\n"
        "    public.other: {path: ./elsewhere}",
    )
    lake = load(write(text), {}).lake
    assert (lake.engine_of("public.big"), lake.deletes_of("public.big")) == ("spark-merge", "soft")
    assert (lake.engine_of("public.x"), lake.deletes_of("public.x")) == ("auto", "hard")
    assert folder_of(lake, "public.other") == str(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("chosen", "engine", "size", "expected"),
    [
        ("auto", "", 0, "task-merge"),
        ("auto", "task-merge", 3 << 30, "spark-merge"),
        ("deletion-vectors", "", 0, "deletion-vectors"),
        ("deletion-vectors", "task-merge", 3 << 30, "deletion-vectors"),
        ("deletion-vectors", "spark-merge", 0, "spark-merge"),
        ("task-merge", "deletion-vectors", 0, "deletion-vectors"),
        ("auto", "deletion-vectors", 3 << 30, "deletion-vectors"),
        ("spark-merge", "deletion-vectors", 0, "spark-merge"),
    ],
)
def test_a_table_never_goes_back_to_an_engine_that_cannot_write_it(
    write, chosen, engine, size, expected
):
    config = load(write(SMALL.replace("{path: ./lake}", f"{{path: ./lake, engine: {chosen}}}")), {})
    entry = table_state(engine=engine, bytes=size) if engine else None
    assert engine_of(config, "public.t", entry) == expected


def test_config_survives_pickling_and_never_shows_a_secret(write):
    text = SMALL.replace(
        "lake: {path: ./lake}",
        "lake: {path: ./lake, storage_options: {AWS_SECRET_ACCESS_KEY: hush-4hush, "
        "AWS_REGION: eu-central-1}}",
    )
    config = load(write(text + "database: {url: postgresql://u@h/d, password: hush-4hush2}\n"), {})
    assert "hush" not in repr(config)
    assert "hush" not in str(config)
    again = pickle.loads(pickle.dumps(config))
    assert again.lake.options() == {
        "AWS_SECRET_ACCESS_KEY": "hush-4hush",
        "AWS_REGION": "eu-central-1",
    }
    assert config.secrets() == {"hush-4hush", "hush-4hush2"}


def test_what_a_free_map_has_from_elsewhere_is_a_secret(write, tmp_path):
    (tmp_path / "bearer").write_text("hush-file\n")
    options = (
        "{odd: '${file:bearer}', other: 'x-${env:E}', allow_http: '${env:ON}', plain: '$${x}'}"
    )
    text = SMALL.replace(
        "lake: {path: ./lake}", f"lake: {{path: ./lake, storage_options: {options}}}"
    )
    config = load(write(text), {"E": "hush-env", "ON": "true"})
    assert config.secrets() == {"hush-file", "x-hush-env"}
    hidden = {path[-1]: secret for path, _, secret in leaves(config) if path[:1] == ("lake",)}
    assert [hidden[n] for n in ("odd", "other", "allow_http", "plain")] == [
        True,
        True,
        False,
        False,
    ]
    assert config.lake.options()["other"] == "x-hush-env"


@pytest.mark.parametrize(
    "key",
    ["ssl.key.pem", "fs.s3a.encryption.key", "azure_encryption_key", "aws_sse_customer_key_base64"],
)
def test_keys_that_sound_like_secrets(write, key):
    text = SMALL.replace(
        "lake: {path: ./lake}", f"lake: {{path: ./lake, storage_options: {{{key}: hush-4hush}}}}"
    )
    assert load(write(text), {}).secrets() == {"hush-4hush"}


def test_any_setting_may_come_from_a_variable(write):
    text = "stream: {shards: '${env:N}', trigger: '${env:T}'}\nlog: {format: '${env:F}'}\n"
    config = load(write(SMALL + text), {"N": "3", "T": "2s", "F": "json"})
    assert (config.stream.shards, config.stream.trigger, config.log.format) == (
        3,
        timedelta(seconds=2),
        "json",
    )
    assert pickle.loads(pickle.dumps(config)) == config


def test_the_password_in_an_address_is_a_secret_in_both_its_forms(write):
    text = SMALL + "database: {url: 'postgresql://u:p%40ssw0rd@h/d'}\n"
    assert load(write(text), {}).secrets() == {"p%40ssw0rd", "p@ssw0rd"}


# --- where values come from -------------------------------------------------------------------


def test_the_environment_wins_over_the_file_and_is_named_as_origin(write):
    loaded = load_with_origins(
        write(SMALL),
        {
            "LAKEMARK_KAFKA__BOOTSTRAP_SERVERS": "a:1,b:2",
            "LAKEMARK_SOURCE__TABLES": "public.a, public.b",
            "LAKEMARK_STREAM__SHARDS": "8",
            "LAKEMARK_LAKE__STORAGE_OPTIONS__AWS_REGION": "eu",
            "LAKEMARK_SPARK": '{"spark.sql.shuffle.partitions": 3}',
        },
    )
    config = loaded.config
    assert config.kafka.bootstrap_servers == "a:1,b:2"
    assert config.source.tables == ["public.a", "public.b"]
    assert config.stream.shards == 8
    assert config.lake.options() == {"AWS_REGION": "eu"}
    assert config.spark_options() == {"spark.sql.shuffle.partitions": "3"}
    assert loaded.origins["kafka.bootstrap_servers"] == "LAKEMARK_KAFKA__BOOTSTRAP_SERVERS"
    assert loaded.origins["name"] == "lakemark.yaml:1"
    assert "stream.trigger" not in loaded.origins


def test_everything_can_come_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    environ = {
        "LAKEMARK_NAME": "shop",
        "LAKEMARK_KAFKA__BOOTSTRAP_SERVERS": "localhost:9092",
        "LAKEMARK_SOURCE__CONNECT__URL": "http://localhost:8083",
        "LAKEMARK_SOURCE__CONNECT__CONNECTOR": "shop",
        "LAKEMARK_LAKE__PATH": "lake",
        "LAKEMARK_CHECKPOINT": "checkpoint",
    }
    assert load(None, environ).lake.path == str(tmp_path / "lake")


@pytest.mark.parametrize(
    "written", ["0123", "1_000", "0x1F", "1.50", "12:30:45", "2024-01-01", "42"]
)
def test_a_text_that_yaml_takes_for_a_number_stays_as_it_is_written(write, written):
    text = SMALL + f"database: {{url: 'postgresql://u@h/d', password: {written}}}\n"
    text += f"spark: {{spark.odd: {written}}}\n"
    config = load(write(text), {})
    assert config.database is not None
    assert config.database.password is not None
    assert config.database.password.get_secret_value() == written
    assert config.spark_options() == {"spark.odd": written}


def test_a_number_is_what_yaml_says(write):
    text = SMALL + "stream: {shards: 0x10}\ndead_letters: {max_record_bytes: 2_000_000}\n"
    config = load(write(text), {})
    assert config.stream.shards == 16
    assert config.dead_letters.max_record_bytes == 2_000_000
    assert type(config.stream.shards) is type(config.dead_letters.max_record_bytes) is int


def test_a_placeholder_inside_a_value_and_an_escaped_one(write):
    text = SMALL.replace("localhost:9092", "'${env:HOST}:9092'").replace(
        "connector: shop", 'connector: "a$${b}"'
    )
    config = load(write(text), {"HOST": "broker"})
    assert config.kafka.bootstrap_servers == "broker:9092"
    assert config.source.connect is not None
    assert config.source.connect.connector == "a${b}"


def test_a_variable_that_an_orchestrator_injects_is_not_ours(write):
    injected = {"LAKEMARK_PORT": "tcp://10.0.0.1:80", "LAKEMARK_SERVICE_HOST": "10.0.0.1"}
    assert load(write(SMALL), injected).name == "shop"


# --- how mistakes are told --------------------------------------------------------------------


def test_all_mistakes_in_one_go_with_place_and_expectation(write):
    found = problems(
        write(
            "nme: shop\n"
            "kafka: {bootstrap_server: localhost:9092}\n"
            "source:\n"
            "  connect: {url: localhost:8083, connector: shop}\n"
            '  tables: ["public.(x"]\n'
            'database: {url: "postgresql://u@h/d", password: "${file:nope}"}\n'
            "lake: {path: ftp://x, deletes: hardd, tables: {orders: {engine: fast}}}\n"
            "snapshot: {chunk_rows: 0, chunk_delay: 5}\n"
            "stream: {shards: many}\n"
            "spark: {shuffle: 3}\n"
            "log: 4\n"
        )
    )
    lines = {path: problem.line for path, problem in found.items()}
    assert lines == {
        "nme": 1,
        "kafka.bootstrap_server": 2,
        "kafka.bootstrap_servers": 2,
        "source.connect.url": 4,
        "source.tables[0]": 5,
        "database.password": 6,
        "lake.path": 7,
        "lake.deletes": 7,
        "lake.tables.orders": 7,
        "lake.tables.orders.engine": 7,
        "snapshot.chunk_rows": 8,
        "snapshot.chunk_delay": 8,
        "stream.shards": 9,
        "spark": 10,
        "log": 11,
        "name": None,
        "checkpoint": None,
    }
    assert found["nme"].hint == "did you mean name?"
    assert found["kafka.bootstrap_server"].hint == "did you mean kafka.bootstrap_servers?"
    assert found["lake.deletes"].message == "found 'hardd'; expected 'hard' or 'soft'"
    assert "500ms, 1s, 2m" in found["snapshot.chunk_delay"].message


def test_a_missing_setting_says_where_it_was_looked_for_in_order(write):
    found = problems(write(SMALL.replace("name: shop\n", "")))
    assert found["name"].hint == "looked for name in lakemark.yaml, then LAKEMARK_NAME"


def test_a_known_key_in_the_wrong_section(write):
    found = problems(write(SMALL + "chunk_rows: 5\n"))
    assert found["chunk_rows"].hint == "did you mean snapshot.chunk_rows?"


def test_a_name_that_another_section_has_is_no_advice_inside_of_a_section(write):
    found = problems(write(SMALL.replace("lake: {", "lake: {format: delta, ")))
    hint = found["lake.format"].hint
    assert hint.startswith("lake has: path, deletes")
    assert hint.endswith("another section has output.format")
    assert "did you mean" not in hint


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SASL_PLAINTEXT"])
def test_names_keep_their_case_in_messages(write, protocol):
    text = SMALL.replace("kafka: {", f"kafka: {{security: {{security_protocol: {protocol}}}, ")
    (found,) = problems(write(text)).values()
    assert f"{protocol} needs security.sasl_mechanism" in found.message


OWN = "{sasl.mechanism: GSSAPI}"


@pytest.mark.parametrize(
    ("own", "fits"),
    [
        (f"java: {OWN}, librdkafka: {OWN}", True),
        (f"java: {OWN}, librdkafka: {{sasl.mechanisms: GSSAPI}}", True),
        (f"java: {OWN}", False),
        (f"librdkafka: {OWN}", False),
    ],
)
def test_a_mechanism_that_lakemark_does_not_know_is_given_to_both_clients(write, own, fits):
    security = f"security: {{security_protocol: SASL_SSL}}, {own}, "
    path = write(SMALL.replace("kafka: {", f"kafka: {{{security}"))
    if fits:
        assert load(path).kafka.security.sasl_mechanism is None
    else:
        assert "both java and librdkafka" in problems(path)["kafka"].message


def test_a_misspelt_variable_is_a_mistake(write):
    environ = {"LAKEMARK_CHECKPONT": "/x", "LAKEMARK_STREAM__SHARD": "8"}
    found = problems(write(SMALL), environ)
    assert found["checkpont"].hint == "did you mean LAKEMARK_CHECKPOINT?"
    assert found["stream.shard"].message.endswith("(from LAKEMARK_STREAM__SHARD)")


def test_a_wrong_value_from_the_environment_names_the_variable(write):
    found = problems(write(SMALL), {"LAKEMARK_STREAM__SHARDS": "many"})
    assert found["stream.shards"].hint == "the value comes from LAKEMARK_STREAM__SHARDS"


@pytest.mark.parametrize(
    ("extra", "path", "words"),
    [
        ("database: {url: 'u:hush-4hush@h/d'}", "database.url", "SCHEME://"),
        ("database: {url: x, password: [hush-4hush]}", "database.password", "string"),
        ("name2: hush-4hush", "name2", "not a setting"),
    ],
)
def test_no_mistake_quotes_a_secret(write, extra, path, words):
    found = problems(write(SMALL + extra + "\n"))
    assert words in found[path].message
    assert "hush-4hush" not in " ".join(p.message + p.hint for p in found.values())


@pytest.mark.parametrize("name", ["password", "sslpassword", "pass%77ord", "x=1#&password"])
def test_a_password_among_the_parameters_of_an_address_is_refused(write, name):
    found = problems(write(SMALL + f"database: {{url: 'postgresql://h/d?{name}=hush-4hush'}}\n"))
    assert "database.password, such as ${file:" in found["database.url"].message
    assert "hush-4hush" not in found["database.url"].message


def test_settings_of_the_converter_may_be_secrets(write):
    told = "{schema.registry.url: 'http://r:8081', basic.auth.user.info: '${env:WHO}'}"
    text = SMALL.replace("connector: shop}", f"connector: shop}}\n  converter: {told}", 1)
    assert text != SMALL
    config = load(write(text), {"WHO": "me:hush-4hush"})
    assert config.source.converter_options() == {
        "schema.registry.url": "http://r:8081",
        "basic.auth.user.info": "me:hush-4hush",
    }
    assert config.secrets() == {"me:hush-4hush"}
    assert "hush-4hush" not in repr(config)


def test_a_login_written_into_the_settings_of_the_converter_is_a_secret(write):
    told = "{basic.auth.user.info: 'me:hush-4hush'}"
    text = SMALL.replace("connector: shop}", f"connector: shop}}\n  converter: {told}", 1)
    config = load(write(text))
    assert config.secrets() == {"me:hush-4hush"}
    assert "hush-4hush" not in repr(config)
    assert masking.Masks(()).foreign("basic.auth.user.info=me:hush") == "basic.auth.user.info=•••"


def test_secrets_that_are_missing_say_so(write, tmp_path):
    text = SMALL + "database: {url: 'postgresql://u@h/d', password: '${env:PGPW}'}\n"
    found = problems(write(text))
    assert found["database.password"].message == "the environment variable PGPW is not set"
    found = problems(write(text.replace("env:PGPW", "file:s/pw")))
    assert found["database.password"].hint == f"create {tmp_path / 's' / 'pw'}"
    found = problems(write(text.replace("env:PGPW", "vault:pw")))
    assert "${env:NAME} or ${file:path}" in found["database.password"].hint


IAM = "security_protocol: SASL_SSL, sasl_mechanism: AWS_MSK_IAM"


@pytest.mark.parametrize(
    ("security", "words"),
    [
        ("{security_protocol: SASL_SSL, sasl_mechanism: PLAIN}", "needs sasl_username, sasl_"),
        (
            "{security_protocol: SASL_SSL, sasl_mechanism: OAUTHBEARER}",
            "OAUTHBEARER needs sasl_oauthbearer_token_endpoint_url, sasl_oauthbearer_client_id, s",
        ),
        ("{security_protocol: SASL_SSL, sasl_mechanism: AWS_MSK_IAM}", "needs sasl_aws_region"),
        (
            "{security_protocol: SASL_PLAINTEXT, sasl_mechanism: AWS_MSK_IAM, sasl_aws_region: r}",
            "needs security_protocol SASL_SSL",
        ),
        (
            f"{{{IAM}, sasl_aws_region: r, sasl_password: p}}",
            "sasl_password is of no use with AWS_MSK_IAM",
        ),
        ("{security_protocol: SASL_SSL, sasl_username: u}", "no use with no sasl_mechanism"),
        ("{sasl_mechanism: PLAIN, sasl_username: u, sasl_password: p}", "SASL_SSL or"),
        ("{security_protocol: SSL, ssl_key_location: lakemark.yaml}", "need each other"),
        ("{ssl_ca_location: lakemark.yaml}", "must be SSL or SASL_SSL"),
    ],
)
def test_security_settings_that_do_not_fit(write, security, words):
    text = SMALL.replace(
        "{bootstrap_servers: localhost:9092}",
        f"{{bootstrap_servers: localhost:9092, security: {security}}}",
    )
    assert words in problems(write(text))["kafka.security"].message


def test_exactly_one_way_to_the_connector(write):
    found = problems(
        write(
            SMALL.replace(
                "  connect: {url: http://localhost:8083, connector: shop}", "  tables: []"
            )
        )
    )
    assert "neither is set" in found["source"].message
    both = SMALL.replace("lake:", "  connector_file: lakemark.yaml\nlake:")
    assert "both are set" in problems(write(both))["source"].message


def test_files_that_do_not_exist(write, tmp_path):
    found = problems(write(SMALL.replace("lake:", "  schema_file: nope.yaml\nlake:")))
    assert found["source.schema_file"].message.endswith(f"{tmp_path / 'nope.yaml'} does not exist")


def test_checkpoint_and_lake_stay_apart(write):
    found = problems(write(SMALL.replace("./checkpoint", "./lake/checkpoint")))
    assert "side by side" in found[""].message


def test_settings_that_lakemark_decides_cannot_be_overridden(write):
    text = SMALL.replace("localhost:9092}", "localhost:9092, java: {isolation.level: x}}")
    assert "isolation.level" in problems(write(text))["kafka.java"].message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: [\n", "not valid YAML"),
        ("- a\n- b\n", "holds no settings"),
        ("name: !!python/object:os.system x\n", "not valid YAML"),
        ("name: a\x00b\n", "not valid YAML"),
    ],
)
def test_files_that_are_no_settings(write, text, words):
    with pytest.raises(InvalidConfig) as caught:
        load(write(text), {})
    assert words in str(caught.value)


def test_a_key_set_twice_and_an_alias_that_contains_itself(write):
    assert problems(write(SMALL + "name: other\n"))["name"].message == "is set twice"
    with pytest.raises(InvalidConfig, match="nested too deeply"):
        load(write(SMALL + "spark: &a {x: *a}\n"), {})


def test_an_unreadable_file(tmp_path):
    with pytest.raises(InvalidConfig, match="cannot be read"):
        load(tmp_path / "nope.yaml", {})


def test_the_error_keeps_its_problems_across_processes():
    error = pickle.loads(pickle.dumps(InvalidConfig([Mistake("a.b", "is odd", "mend it", 3)])))
    assert error.problems == [Mistake("a.b", "is odd", "mend it", 3)]
    assert error.hint == "mend it"


def test_what_is_legal_but_should_be_known(write, tmp_path):
    alone = SMALL.replace(
        "connect: {url: http://localhost:8083, connector: shop}", "connector_file: c"
    )
    (tmp_path / "c").write_text("{}")
    file = write(alone + "output: {topic_prefix: shop.clean}\nsnapshot: {chunk_rows: 5}\n")
    warnings = {p.path: p for p in load_with_origins(file, {}).warnings}
    assert set(warnings) == {"output", "snapshot"}
    assert warnings["output"].line == 7
    assert all(p.warning for p in warnings.values())


def test_a_placeholder_that_fails_is_one_mistake_not_two(write):
    found = problems(write(SMALL + "stream: {shards: '${env:NOPE}'}\n"))
    assert found["stream.shards"].message == "the environment variable NOPE is not set"


# --- the schema and the place of the file -----------------------------------------------------


def test_the_published_schema_is_current():
    published = json.loads((ROOT / "schemas" / "config.json").read_text())
    assert published == Config.model_json_schema(schema_generator=SettingsSchema), (
        "run: lakemark config schema > schemas/config.json"
    )


def yaml_of(page: str, *, below: str = "") -> str:
    """The one YAML block of a page, or of the rest below a heading."""
    text = (ROOT / page).read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", text[text.index(below) :], re.DOTALL)
    return textwrap.dedent(block)


def test_the_first_examples_work_and_every_setting_is_named(write, tmp_path):
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "postgres").write_text("x")
    config = load(write(yaml_of("README.md")), {})
    tables = tmp_path / "tables.yaml"
    tables.write_text(yaml_of("docs/settings.md", below="## A schema file"))
    assert list(read_schema_file(tables)) == ["public.orders"]
    page = (ROOT / "docs" / "settings.md").read_text()
    table = page[page.index("| setting |") : page.index("## A schema file")]
    missing = [path for path, _, _ in leaves(config) if path[-1] not in table]
    assert missing == []


def test_every_setting_can_be_listed(write):
    listed = {".".join(path) for path, _, _ in leaves(load(write(SMALL), {}))}
    assert {"name", "kafka.security.sasl_password", "stream.trigger", "lake.tables"} <= listed


def test_the_file_is_looked_for_in_order(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("LAKEMARK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LAKEMARK_CACHE", str(tmp_path))  # says nothing about the pipeline
    with pytest.raises(InvalidConfig) as caught:
        config_file(None)
    hint = caught.value.problems[0].hint
    assert hint.index("-c FILE") < hint.index("LAKEMARK_CONFIG") < hint.index("lakemark.yaml")
    (tmp_path / "lakemark.yaml").touch()
    assert config_file(None) == Path("lakemark.yaml")
    monkeypatch.setenv("LAKEMARK_CONFIG", "other.yaml")
    assert config_file(None) == Path("other.yaml")
    assert config_file(Path("mine.yaml")) == Path("mine.yaml")
