"""Secrets that stand in a file, and may change there while the pipeline runs.

`${file:path}` in a setting gives a `Referred`; where the setting is a secret it becomes a
`FileSecret`, which reads the file again whenever its value is asked for. Clients ask when they
connect, so the next connection uses a password that was changed meanwhile. `${env:NAME}` gives one
without files.

Crossing to another process it takes the value of that moment along: there may be no such file.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import SecretStr


@dataclass(frozen=True, slots=True)
class Template:
    """A text with files in it.

    Attributes:
        parts: texts, and files whose content stands between them.
    """

    parts: tuple[str | Path, ...]

    @property
    def has_files(self) -> bool:
        """True if any part is a file's."""
        return any(isinstance(part, Path) for part in self.parts)

    def read(self) -> str:
        """The text as it is now; of a file the newlines at its end do not count.

        Raises:
            OSError: a file cannot be read.
            UnicodeDecodeError: it is not UTF-8.
        """
        return "".join(p if isinstance(p, str) else content(p) for p in self.parts)

    def now(self) -> str:
        """As `read`, but empty while a file is replaced: it is not there then, or not whole."""
        try:
            files = [content(p) for p in self.parts if isinstance(p, Path)]
            return self.read() if all(files) else ""
        except (OSError, UnicodeDecodeError):
            return ""


def content(file: Path) -> str:
    """Return what a file holds, without the newlines at its end.

    Raises:
        OSError: it cannot be read.
        UnicodeDecodeError: it is not UTF-8.
    """
    return file.read_text(encoding="utf-8").rstrip("\r\n")


class Referred(str):
    """The value of a setting that names files or variables, and what it was made from."""

    __slots__ = ("template",)
    template: Template

    @classmethod
    def of(cls, value: str, template: Template) -> Self:
        """The value as it was read."""
        made = cls(value)
        made.template = template
        return made


class _Seen:
    """Values that were replaced or replaced others since the process began: they are hidden too."""

    values: frozenset[str] = frozenset()


def seen() -> frozenset[str]:
    """Every value of a file that has had several; the same object while there is no new one."""
    return _Seen.values


class FileSecret(SecretStr):
    """A secret as its files hold it now; the last one known while a file cannot be read."""

    def __init__(self, value: Referred) -> None:
        super().__init__(str(value))
        self._template = value.template

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that it is made of."""
        return tuple(part for part in self._template.parts if isinstance(part, Path))

    def get_secret_value(self) -> str:
        """The secret in clear, read now."""
        found = self._template.now()
        if found and found != self._secret_value:
            _Seen.values |= {self._secret_value, found}
            self._secret_value = found
        return self._secret_value

    def __getstate__(self) -> dict[str, Any]:
        """The value of this moment goes along."""
        self.get_secret_value()
        return self.__dict__


def secret(value: object) -> object:
    """A text from files as the secret that follows them; anything else as it is."""
    if isinstance(value, Referred) and value.template.has_files:
        return FileSecret(value)
    return value
