"""JSON keeps what every converter must."""

import json

from lakemark.converters.registry import JSON
from tests.kit.converter_contract import ConverterContract


class TestJson(ConverterContract):
    name = JSON

    def value(self, event):
        return json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode()

    def key(self, row):
        return self.value(row)
