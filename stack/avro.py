"""Connectors that write Avro: Apicurio's converter, and its settings for each form of records."""

from collections.abc import Mapping
from typing import Final

CONVERTER: Final = "io.apicurio.registry.utils.converter.AvroConverter"

_FRAMINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "confluent": {  # 0, four bytes of id; use-id is what the compatible API knows by it
        "as-confluent": "true",
        "use-id": "contentId",
        "headers.enabled": "false",
    },
    "global": {"headers.enabled": "false"},  # 0, eight bytes of global id
    "headers": {"headers.enabled": "true"},  # no prefix: ids in headers
}
FRAMINGS: Final = tuple(_FRAMINGS)
"""Where a record has the number of its schema."""


def avro_settings(registry_url: str, framing: str = FRAMINGS[0]) -> dict[str, str]:
    """Return a connector's settings for keys and values in Avro.

    Args:
        registry_url: of Apicurio's own API, as Connect reaches it.
        framing: one of `FRAMINGS`.
    """
    told = {"url": registry_url, "auto-register": "true", "find-latest": "true"}
    told |= _FRAMINGS[framing]
    return {
        "schema.name.adjustment.mode": "avro",
        "field.name.adjustment.mode": "avro",
        **{f"{side}.converter": CONVERTER for side in ("key", "value")},
        **{
            f"{side}.converter.apicurio.registry.{name}": value
            for side in ("key", "value")
            for name, value in told.items()
        },
    }
