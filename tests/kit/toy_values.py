"""Rules of values of a connector that nobody outside of this file knows."""

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from lakemark.model import value_rules
from lakemark.model.value_rules import Mend

CONNECTOR = "toy"
CLASS = "io.debezium.connector.toy.ToyConnector"


def halves(values):
    """Doubled numbers to what they are; an odd one is none."""
    odd = pc.any(pc.equal(pc.bit_wise_and(values, 1), 1)).as_py()
    if odd:
        raise ValueError("odd")
    return pc.divide(values, 2).cast(pa.int32())


def doubles(values):
    return pc.multiply(values.cast(pa.int64()), 2)


@dataclass(frozen=True)
class ToyValues:
    """Columns of type ``half`` are written doubled, as longs."""

    choices: dict = field(
        default_factory=lambda: {
            "time.precision.mode": ("microseconds", "connect"),
            "toy.mode": ("plain", "fancy"),
        }
    )
    lacks_values: bool = False
    mends: dict = field(
        default_factory=lambda: {
            "half": Mend(halves, doubles, plain=pa.int64(), exact=pa.int32(), loss="toys lie")
        }
    )

    def more_settings(self, settings):
        return {name: value for name, value in settings.items() if name.startswith("toys.")}

    def mend_of(self, column):
        return "half" if column.source_type == "half" else ""


VALUES = {CONNECTOR: ToyValues()}


def use(monkeypatch):
    """Make the toy known."""
    monkeypatch.setitem(value_rules.RULES, CONNECTOR, "tests.kit.toy_values")
    value_rules.rules_of.cache_clear()
