"""The version of the installed package, said in one place: pyproject.toml."""

from importlib import metadata
from typing import Final


def _installed() -> str:
    try:
        return metadata.version("lakemark")
    except metadata.PackageNotFoundError:  # a source tree on the path, not installed
        return "0+unknown"


__version__: Final = _installed()
