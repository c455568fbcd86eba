"""Pipelines over records in Avro: the connector's settings for each form, and lakemark's."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from stack.avro import FRAMINGS, avro_settings
from stack.local import Database, Servers
from tests.kit.servers import registry_of

WRAPPED: Final[Mapping[str, str]] = {
    "value.converter.schemas.enable": "true",
    "key.converter.schemas.enable": "true",
}
PLAIN: Final = "plain"
FORMS: Final = (PLAIN, "wrapped", *FRAMINGS)
"""JSON without and with its schemas, and Avro with each way in which a record names its own."""


def form_settings(form: str, stack: Servers) -> dict[str, str]:
    """The connector's settings for one of `FORMS`; for Avro the servers have a registry then."""
    if form in FRAMINGS:
        return avro_settings(registry_of(stack).url, form)
    return {} if form == PLAIN else dict(WRAPPED)


def source_section(database: Database, directory: Path, **converter: str) -> dict[str, Any]:
    """lakemark's section `source`, with copies of schemas that no other registry's are among."""
    return {
        "connect": {"url": database.stack.connect.url, "connector": database.name},
        "converter": {"registry.folder": str(directory / "schemas"), **converter},
    }
