"""A connector's settings, and what lakemark makes of them."""

import re

from lakemark.connectors import connector
from lakemark.settings.config import Config

JSON = "org.apache.kafka.connect.json.JsonConverter"
POSTGRES = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "topic.prefix": "shop",
    "signal.data.collection": "public.debezium_signal",
    "skipped.operations": "none",
    "key.converter": JSON,
    "value.converter": JSON,
    "value.converter.replace.null.with.default": "false",
}


def config(**changes) -> Config:
    settings = {
        "name": "shop",
        "kafka": {"bootstrap_servers": "b:1"},
        "source": {"connect": {"url": "http://c:8083", "connector": "shop"}},
        "database": {"url": "postgresql://u@h/d"},
        "lake": {"path": "/lake"},
        "checkpoint": "/checkpoint",
    }
    for path, value in changes.items():
        section, _, key = path.partition("__")
        if key:
            settings[section] = {**settings[section], key: value}
        else:
            settings[section] = value
    return Config.model_validate(settings)


def parse(settings=(), **changes):
    return connector.parse({**POSTGRES, **dict(settings)}, config=config(**changes))


def reads(found, topic: str) -> bool:
    return re.fullmatch(found.topic_pattern, topic) is not None
