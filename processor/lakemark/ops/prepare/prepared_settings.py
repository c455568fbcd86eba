"""A connector's settings as the doctor would have them. Pure.

What the doctor says of one is done, what the database's script needs is added, all else stays.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from lakemark.connectors import connector as connectors
from lakemark.connectors.registry import traits_of
from lakemark.converters.registry import without_schemas
from lakemark.model.findings import Finding, Verdict
from lakemark.ops.doctor.checks_connector import of_settings
from lakemark.settings.config import Config
from lakemark.settings.layers import Mistake, SetTo
from lakemark.settings.masking import SECRET_KEY

SECRETS: Final = "/etc/kafka-connect/connector.properties"
"""The file that stands for secrets, on the machines of Connect's workers."""
_MODE: Final = "snapshot.mode"
_ROUNDS: Final = 9  # a value may be what another rule asks about; no two rules ask for two values


@dataclass(frozen=True, slots=True)
class ChangedSetting:
    """A setting that the prepared connector has otherwise.

    Attributes:
        name: of the setting.
        value: that it is to have.
        why: the reason.
        before: the value that it had; None if none, or a secret.
    """

    name: str
    value: str
    why: str
    before: str | None


@dataclass(frozen=True, slots=True)
class PreparedSettings:
    """The settings of a prepared connector.

    Attributes:
        settings: all of them, without secrets.
        changed: those that are new or have another value, in their order.
        left: findings that no value of a setting mends.
    """

    settings: Mapping[str, str]
    changed: tuple[ChangedSetting, ...]
    left: tuple[Finding, ...]


def prepared(
    settings: Mapping[str, str], config: Config, more: Iterable[Mistake] = ()
) -> PreparedSettings:
    """Return the settings as they are to be.

    Args:
        settings: the connector's.
        config: ours.
        more: what the database's script needs of them.
    """
    now, reasons = dict(settings), dict[str, str]()
    for name, why in _without_secrets(now):
        reasons[name] = why
    for mistake in (*more, *_own_wishes(settings, config)):
        _mend(now, reasons, mistake.message, mistake.hint)
    for _ in range(_ROUNDS):
        asked = [f for f in _findings(now, config) if isinstance(f.mend, SetTo)]
        mended = [_mend(now, reasons, finding.reason, finding.mend) for finding in asked]
        if not any(mended):
            break
    changed = (
        ChangedSetting(name, now[name], why, _shown(settings, name))
        for name, why in reasons.items()
    )
    left = [f for f in _findings(now, config) if f.verdict is not Verdict.OK]
    return PreparedSettings(now, tuple(changed), tuple(left))


def _mend(now: dict[str, str], reasons: dict[str, str], why: str, hint: str) -> bool:
    """Do what a hint says; return whether that changed something."""
    if not isinstance(hint, SetTo) or now.get(hint.setting) == hint.value:
        return False
    now[hint.setting], reasons[hint.setting] = hint.value, why
    return True


def _findings(settings: Mapping[str, str], config: Config) -> list[Finding]:
    problems = connectors.parse(settings, config=config).problems
    return of_settings(settings, problems, traits_of(settings, config.database))


def _own_wishes(settings: Mapping[str, str], config: Config) -> Iterator[Mistake]:
    if config.database is None:
        return
    if not settings.get(_MODE):
        why = "lakemark reads the rows itself, in parallel and while the log goes on"
        yield Mistake(_MODE, why, SetTo(_MODE, "no_data"), warning=True)
    yield from without_schemas(settings)


def _without_secrets(now: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Put placeholders for secrets; yield the settings' names and the reason."""
    for name, value in now.items():
        if is_secret(name) and value and "${" not in value:
            now[name] = f"${{file:{SECRETS}:{name}}}"
            yield name, f"a secret: write it into {SECRETS} of each worker, under this name"


def is_secret(name: str) -> bool:
    """Say whether a setting's value must not be shown, by its name."""
    return SECRET_KEY.search(name.replace("sasl.", "")) is not None


def _shown(settings: Mapping[str, str], name: str) -> str | None:
    return None if is_secret(name) else settings.get(name)
