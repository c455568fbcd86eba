"""Secrets that are changed in their files while the process runs."""

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from lakemark.connectors.postgres.postgres import conninfo
from lakemark.errors import ConfigError
from lakemark.kafka.client_settings import java_options, librdkafka_options
from lakemark.settings import layers, masking
from lakemark.settings.config import Config, load
from lakemark.settings.file_secret import Referred
from lakemark.settings.layers import LoginRefused, Mistake
from lakemark.settings.masking import MASK

TEXT = """\
name: shop
kafka:
  bootstrap_servers: localhost:9092
  security:
    security_protocol: SASL_SSL
    sasl_mechanism: SCRAM-SHA-512
    sasl_username: lakemark
    sasl_password: ${file:kafka}
  librdkafka: {ssl.keystore.password: "${file:kafka}"}
source: {connect: {url: http://localhost:8083, connector: shop, username: u, password: "${file:connect}"}}
database: {url: postgresql://lakemark@localhost:5432/shop, password: "pre-${env:MIDDLE}-${file:pg}"}
lake: {path: ./lake}
checkpoint: ./checkpoint
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    for name in ("kafka", "connect", "pg"):
        (tmp_path / name).write_text(f"first-{name}\n")
    file = tmp_path / "lakemark.yaml"
    file.write_text(TEXT)
    return load(file, {"MIDDLE": "mid"})


def test_who_connects_next_gets_what_the_file_holds_now(config: Config, tmp_path: Path):
    assert config.database is not None
    assert "password=pre-mid-first-pg" in conninfo(config.database)
    (tmp_path / "pg").write_text("second\n")
    assert "password=pre-mid-second" in conninfo(config.database)
    (tmp_path / "kafka").write_text("another")
    ours = librdkafka_options(config)
    assert (ours["sasl.password"], ours["ssl.keystore.password"]) == ("another", "another")
    assert 'password="another"' in java_options(config)["kafka.sasl.jaas.config"]
    assert {"pre-mid-second", "another", "first-connect"} <= config.secrets()


LITERAL = st.text(alphabet="ab$} \n", max_size=4)


@given(data=st.data())
def test_a_text_read_again_is_what_it_was_at_first(tmp_path_factory, data):
    base = tmp_path_factory.mktemp("files", numbered=True)
    contents = data.draw(st.lists(st.text(alphabet="xyz${", min_size=1, max_size=4), max_size=3))
    given_text, wanted = "", ""
    for number, content in enumerate(contents):
        (base / f"f{number}").write_text(f"{content}\n")
        literal, kind = data.draw(LITERAL), data.draw(st.sampled_from(["file", "escape", "env"]))
        inner = {"file": f"${{file:f{number}}}", "escape": "$${", "env": "${env:E}"}[kind]
        literal = literal.rstrip("$")  # would escape what follows
        given_text += literal + inner
        wanted += literal + {"file": content, "escape": "${", "env": "e"}[kind]
    found = layers._resolve(given_text, ("x",), {"E": "e"}, layers.Layers(base))
    assert found == wanted
    if "${file:" in given_text.replace("$${", ""):
        assert isinstance(found, Referred)
        assert found.template.now() == wanted


@pytest.mark.parametrize("how", ["gone", "empty", "no UTF-8"])
def test_a_file_that_is_being_replaced_changes_nothing(config: Config, tmp_path: Path, how: str):
    assert config.database is not None
    file = tmp_path / "pg"
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes(b"" if how == "empty" else b"\xff")
    assert "password=pre-mid-first-pg" in conninfo(config.database)
    file.write_text("second")
    assert "password=pre-mid-second" in conninfo(config.database)


def test_another_process_gets_the_value_of_the_moment(config: Config, tmp_path: Path):
    (tmp_path / "pg").write_text("second")
    blob = pickle.dumps(config)
    (tmp_path / "pg").unlink()  # there may be no such file
    there = pickle.loads(blob)
    assert "password=pre-mid-second" in conninfo(there.database)
    (tmp_path / "pg").write_text("third")  # or there is
    assert "password=pre-mid-third" in conninfo(there.database)


def test_a_new_value_is_hidden_as_the_first_was(config: Config, tmp_path: Path):
    hide = masking.foreign
    assert hide("x pre-mid-rotated x") == "x pre-mid-rotated x"
    (tmp_path / "pg").write_text("rotated")
    assert config.database is not None
    conninfo(config.database)
    assert hide("x pre-mid-rotated x pre-mid-first-pg") == f"x {MASK} x {MASK}"
    assert "rotated" not in repr(config)
    assert "rotated" not in str(config.database.password)


def test_what_is_no_secret_is_read_once_and_a_plain_secret_stays_one(tmp_path: Path):
    (tmp_path / "name").write_text("shop\n")
    file = tmp_path / "lakemark.yaml"
    plain = TEXT.replace("name: shop", "name: ${file:name}").replace("${file:", "${env:")
    file.write_text(plain.replace("${env:name}", "${file:name}"))
    found = load(file, {"MIDDLE": "m", "kafka": "k", "connect": "c", "pg": "p"})
    assert found.name == "shop"
    (tmp_path / "name").write_text("other")
    assert found.topics.progress == "shop.progress"
    assert found.database is not None
    assert type(found.database.password) is SecretStr


def test_the_database_s_refusal_keeps_its_kind_across_processes():
    problem = Mistake("database", "the database refuses us", "check database.password")
    error = pickle.loads(pickle.dumps(LoginRefused(problem, code="database-refused")))
    assert isinstance(error, ConfigError)
    assert (error.code, error.retried) == ("database-refused", True)
    assert error.message == "the database refuses us"
    assert "database.password" in error.hint
