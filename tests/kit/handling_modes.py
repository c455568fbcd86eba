"""How a connector can be set to write values: a few settings that between them reach every way."""

MODES = {
    "defaults": {},
    "connect": {"time.precision.mode": "connect", "binary.handling.mode": "base64"},
    "texts": {
        "decimal.handling.mode": "string",
        "time.precision.mode": "isostring",
        "interval.handling.mode": "string",
        "hstore.handling.mode": "map",
        "binary.handling.mode": "base64-url-safe",
    },
    "numbers": {
        "decimal.handling.mode": "double",
        "time.precision.mode": "nanoseconds",
        "binary.handling.mode": "hex",
    },
    "microseconds": {"time.precision.mode": "microseconds"},
    "structs": {"time.precision.mode": "structured"},
}
