"""The places where the configuration file is looked for."""

import os
from pathlib import Path
from typing import Final

from lakemark.settings.layers import ENV_PREFIX, NOT_SETTINGS, InvalidConfig, Mistake

DEFAULT: Final = "lakemark.yaml"


def config_file(given: Path | None) -> Path | None:
    """The file that was named, else ``LAKEMARK_CONFIG``, else ``./lakemark.yaml``.

    Returns:
        None when there is no file and the environment holds settings.

    Raises:
        InvalidConfig: none of these exists; the message lists the places in order.
    """
    variable = os.environ.get("LAKEMARK_CONFIG", "")
    named = given or (Path(variable) if variable else None)
    if named is not None:
        return named
    default = Path(DEFAULT)
    if default.is_file():
        return default
    if any(n.startswith(ENV_PREFIX) and n not in NOT_SETTINGS for n in os.environ):
        return None
    raise InvalidConfig(
        [
            Mistake(
                "",
                "no configuration was found",
                f"looked for -c FILE, then LAKEMARK_CONFIG, then {default.absolute()}, "
                f"then {ENV_PREFIX}… variables; copy lakemark.example.yaml to start",
            )
        ]
    )
