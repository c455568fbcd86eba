"""lakemark keeps Delta tables equal to the databases behind Debezium."""

from lakemark.errors import (
    ConfigError,
    DependencyError,
    LakemarkError,
    PipelineError,
    StateVersionError,
    TableError,
)
from lakemark.version import __version__

__all__ = [
    "ConfigError",
    "DependencyError",
    "LakemarkError",
    "PipelineError",
    "StateVersionError",
    "TableError",
    "__version__",
]
