"""The connectors of a pipeline, and how each is spoken of where there are several.

With one connector nothing is changed: its part has no name, and says everything as it was said.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from lakemark.connectors import connector as connectors
from lakemark.connectors.connect_rest import ATTEMPTS
from lakemark.connectors.connector import Connector
from lakemark.errors import LakemarkError
from lakemark.model.findings import Finding
from lakemark.settings.config import CaptureConfig, Config
from lakemark.settings.layers import InvalidConfig, LoginRefused, Mistake
from lakemark.settings.names import quoted
from lakemark.settings.table_id import qualified

_OF_CONNECTOR: Final = "connector: "  # begins the path of a problem with the connector's settings
_SNAPSHOT: Final = "lakemark snapshot start "
_SETTING: Final = re.compile(rf"\bsource\.(?=(?:{'|'.join(CaptureConfig.model_fields)})\b)")


@dataclass(frozen=True, slots=True)
class PipelinePart:
    """One connector of a pipeline.

    Attributes:
        config: that of a pipeline which had this connector alone.
        name: of the connector; empty where it is the only one.
        section: the settings' path to its entry; empty likewise.
    """

    config: Config
    name: str = ""
    section: str = ""

    def read(self, *, attempts: int = ATTEMPTS) -> Connector:
        """Return the connector; among several it has its qualifier, and its problems name it.

        Raises:
            DependencyError: Connect does not answer.
            InvalidConfig: Connect does not know the connector, refuses us, or the file is
                unreadable.
        """
        try:
            found = connectors.read(self.config, attempts=attempts)
        except LakemarkError as error:
            raise self.error(error) from error
        return self.named(found)

    def named(self, connector: Connector) -> Connector:
        """Return the connector of this part, whose problems name it."""
        if not self.name:
            return connector
        return replace(connector, problems=tuple(map(self.mistake, connector.problems)))

    def mistake(self, problem: Mistake) -> Mistake:
        """Return a problem that names the connector, and settings as they are in its entry."""
        if not self.name:
            return problem
        path = self._settings(problem.path.removeprefix(_OF_CONNECTOR))
        if problem.path.startswith("database."):
            path = f"{self.section}.{path}"
        message, hint = self._settings(problem.message), self._settings(problem.hint)
        return replace(problem, path=f"connector {self.name}: {path}", message=message, hint=hint)

    def error(self, error: LakemarkError) -> LakemarkError:
        """Return an error that names the connector."""
        if not self.name:
            return error
        if isinstance(error, LoginRefused):
            return LoginRefused(self.mistake(error.problems[0]), code=error.code)
        if isinstance(error, InvalidConfig):
            return InvalidConfig([*map(self.mistake, error.problems)], source=error.source)
        message, hint = self._settings(error.message), self._settings(error.hint)
        named = f"connector {self.name}: {message}"
        return type(error)(named, code=error.code, hint=hint, retried=error.retried)

    def finding(self, finding: Finding, qualifier: str = "") -> Finding:
        """Return a finding of this connector's; commands in it have its tables' names.

        Args:
            finding: as it is of a connector alone.
            qualifier: of the connector; empty while it is not known.
        """
        if not self.name:
            return finding
        mend = self._settings(finding.mend)
        if qualifier:
            table = qualified(qualifier, finding.subject)
            all_tables = f"{quoted(qualifier)}\\..*"
            mend = mend.replace(f"{_SNAPSHOT}{finding.subject}", f"{_SNAPSHOT}{table}")
            mend = mend.replace(f"{_SNAPSHOT}'.*'", f"{_SNAPSHOT}'{all_tables}'")
        reason = self._settings(finding.reason)
        return replace(finding, connector=self.name, reason=reason, mend=mend)

    def _settings(self, text: str) -> str:
        """Return a text whose settings of a connector are those of its entry."""
        if _SETTING.search(text) is None:
            return text  # a hint may be more than its text
        return _SETTING.sub(lambda _: f"{self.section}.", text)


def parts_of(config: Config) -> tuple[PipelinePart, ...]:
    """Return the connectors of a configuration, in its order."""
    if not config.several:
        return (PipelinePart(config),)
    names = config.connector_names
    return tuple(
        PipelinePart(part, name, f"source.connectors[{number}]")
        for number, (part, name) in enumerate(zip(config.parts, names, strict=True))
    )


def shared_prefixes(
    parts: Sequence[PipelinePart], known: Sequence[Connector | None]
) -> Iterator[tuple[PipelinePart, Mistake]]:
    """Yield the mistake of each connector whose topic prefix one before it has.

    Their topics, and the names of their tables, are the same then.

    Args:
        parts: of the configuration.
        known: their connectors, as far as they are known.
    """
    first: dict[str, str] = {}
    for part, connector in zip(parts, known, strict=True):
        if connector is None or not connector.topic_prefix:
            continue
        before = first.setdefault(connector.topic_prefix, part.name)
        if before != part.name:
            message = f"{connector.topic_prefix} is that of the connector {before}, too"
            hint = "give each connector of a pipeline a topic.prefix of its own"
            yield part, Mistake(f"{_OF_CONNECTOR}topic.prefix", message, hint)
