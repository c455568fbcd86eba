"""The registry of a stack, and what lets Connect write Avro."""

import zipfile

import pytest

from stack import avro, connect
from stack.connect import PLUGINS, debezium_plugins
from stack.local import LocalStack
from stack.processes import StackError
from stack.registry import VERSIONS, Registry


def test_a_stack_with_a_registry_can_write_avro(tmp_path):
    services = ("kafka", "connect", "postgres", "registry")
    with_one = LocalStack(services=services, directory=tmp_path)
    assert with_one.connect.plugins == ["avro", "postgres"]
    assert with_one.registry in with_one.servers
    assert LocalStack(services=services[:3], directory=tmp_path).connect.plugins == ["postgres"]
    with pytest.raises(StackError, match="registries"):
        LocalStack(services=("registries",), directory=tmp_path)


def test_it_has_both_apis_at_one_port_of_its_own(tmp_path):
    one, other = (Registry(directory=tmp_path, log=tmp_path / "log") for _ in range(2))
    assert one.port != other.port
    assert one.url == f"{one.address}/apis/registry/v2"
    assert one.compatible_url == f"{one.address}/apis/ccompat/v7"
    assert one.version == next(iter(VERSIONS))


@pytest.mark.parametrize("framing", avro.FRAMINGS)
def test_keys_and_values_are_told_the_same(framing):
    found = avro.avro_settings("http://r:1/apis/registry/v2", framing)
    sides = [
        {n.removeprefix(f"{side}."): v for n, v in found.items() if n.startswith(f"{side}.")}
        for side in ("key", "value")
    ]
    assert sides[0] == sides[1]
    assert sides[0]["converter"] == avro.CONVERTER == PLUGINS["avro"].java_class
    in_headers = sides[0]["converter.apicurio.registry.headers.enabled"] == "true"
    assert in_headers is (framing == "headers")


def test_a_plugin_that_does_not_say_what_it_is_is_given_a_file_that_does(tmp_path, monkeypatch):
    """Connect would else look through every class of every plugin at each start."""
    monkeypatch.setenv("LAKEMARK_CACHE", str(tmp_path / "cache"))
    jars = [tmp_path / name for name in ("a.jar", "b.jar")]
    for jar in jars:
        jar.write_bytes(jar.name.encode())
    monkeypatch.setattr(connect, "fetch", lambda *_, **__: jars)
    (place,) = debezium_plugins("avro").iterdir()
    assert sorted(path.name for path in place.iterdir()) == ["a.jar", "b.jar", "service.jar"]
    with zipfile.ZipFile(place / "service.jar") as service:
        (name,) = service.namelist()
        assert name == "META-INF/services/org.apache.kafka.connect.storage.Converter"
        assert service.read(name).decode().strip() == avro.CONVERTER
    assert [*debezium_plugins("avro").iterdir()] == [place]
