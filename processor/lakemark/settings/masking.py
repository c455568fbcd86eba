"""Secrets taken out of what other programs say, before it becomes a part of our messages.

What lakemark says itself holds no secret. What a library, the brokers, the database or Java say of
an error may: an address with its password, a setting with its value. So their text goes through
`foreign` where it comes in; names, lakemark's own words and what somebody sent to us do not, and
nobody can find out by asking whether a word is a password.

| a secret | `foreign` | `own` |
|---|---|---|
| in an address: `://user:…@`, `?password=…` | masked, also an unknown one | the same |
| after its name: `password=…`, `"token": "…"` | masked, also an unknown one | stays |
| that looks like nothing else | masked | masked |
| that is a word or a number | as a whole word, unless a setting that is shown has it | stays |
| of less than four characters | stays | stays |

`own` looks a second time at the messages that faults are explained with.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, quote_plus

from lakemark.settings import file_secret

MASK: Final = "•••"

SECRET_KEY: Final = re.compile(
    r"password|passwd|secret|token|jaas|credential|sas"
    r"|(access|account|api|customer|encryption|master|private|shared|storage)[._-]?key"
    r"|keystore\.key|key[._-]pem|user\.info",
    re.IGNORECASE,
)
"""The words in names of secrets, in the settings of other programs."""

EXPLAINS: Final = frozenset(
    {"error", "hint", "mend", "message", "note", "reason", "resnapshot", "why"}
)
"""Names of fields with messages that faults are explained with."""

_SHORTEST: Final = 4
_UNLIKE_A_WORD: Final = 6  # characters from which a secret that is no word looks like nothing else
_LONG: Final = 20  # no word that anybody writes by chance
_WORD: Final = re.compile(r"[^\W\d_]+([-_. ][^\W\d_]+)*\d{0,4}|\d+")
_BEFORE, _BEHIND = r"(?<![\w/\\-])(?<!\w\.)", r"(?![\w/\\-]|\.\w)"  # no part of a name or a path

_IN_ADDRESS: Final = re.compile(r"(?<=://)([^/@:\s]{0,100}):(\S{1,300})@")
_PARAMETER: Final = re.compile(r"([?&][\w.-]+)=[^&\s\"']+")
_NAMED: Final = re.compile(
    rf"(?<![\w.-])([\w.-]{{0,80}}(?:{SECRET_KEY.pattern})[\w.-]{{0,80}}[\"']?\s{{0,9}}[=:]\s{{0,9}})"
    r"(\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|(?:Bearer |Basic )?[^\s,;&\"')\]}]+)",
    re.IGNORECASE,
)


class Masks:
    """The secrets of one configuration, and those that files had since.

    Args:
        secrets: their values.
        shown: the values of all other settings.
    """

    def __init__(self, secrets: Iterable[str], shown: Iterable[str] = ()) -> None:
        self.more = file_secret.seen()
        known = {secret for secret in (*secrets, *self.more) if len(secret) >= _SHORTEST}
        sure = {secret for secret in known if _is_sure(secret)}
        text = "\n".join(("lakemark", *shown))
        words = {w for w in known - sure if not re.search(rf"(?<!\w){re.escape(w)}(?!\w)", text)}
        self._sure = _any_of([re.escape(form) for secret in sure for form in _forms(secret)])
        self._words = _any_of([_whole(form) for word in words for form in _forms(word)])

    def foreign(self, text: str) -> str:
        """Text of another program without secrets."""
        text = self.own(text)
        if self._words is not None:
            text = self._words.sub(MASK, text)
        return _NAMED.sub(_hide_value, text)

    def own(self, text: str) -> str:
        """A message without secrets that cannot be anything else."""
        if self._sure is not None:
            text = self._sure.sub(MASK, text)
        text = _IN_ADDRESS.sub(rf"\1:{MASK}@", text)
        return _PARAMETER.sub(lambda m: f"{m[1]}={MASK}" if SECRET_KEY.search(m[1]) else m[0], text)


def _is_sure(secret: str) -> bool:
    if len(secret) >= _LONG:
        return True
    return len(secret) >= _UNLIKE_A_WORD and _WORD.fullmatch(secret) is None


def _forms(secret: str) -> set[str]:
    """As it is, and as it stands in addresses, JSON and JAAS lines."""
    escaped = secret.replace("\\", "\\\\").replace('"', '\\"')
    escaped = escaped.replace("\r", "\\r").replace("\n", "\\n")
    written = (json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1])
    return {secret, quote(secret, safe=""), quote_plus(secret), escaped, *written}


def _whole(word: str) -> str:
    before = _BEFORE if re.match(r"\w", word) else ""
    return before + re.escape(word) + (_BEHIND if re.search(r"\w\Z", word) else "")


def _any_of(patterns: Sequence[str]) -> re.Pattern[str] | None:
    """Return one pattern for all, the longest first: one secret may begin with another."""
    return re.compile("|".join(sorted(patterns, key=len, reverse=True))) if patterns else None


def _hide_value(named: re.Match[str]) -> str:
    around = named[0][-1] if named[0][-1] in "\"'" else ""
    return f"{named[1]}{around}{MASK}{around}"


class _Process:
    """The secrets that this process knows: the newest configuration's."""

    made: Callable[[], Masks] = staticmethod(lambda: Masks(()))
    masks: Masks | None = None


def know(made: Callable[[], Masks]) -> None:
    """From now on these are the secrets of this process; they are asked for when there is text."""
    _Process.made, _Process.masks = staticmethod(made), None


def _masks() -> Masks:
    masks = _Process.masks
    if masks is None or masks.more is not file_secret.seen():
        masks = _Process.masks = _Process.made()
    return masks


def foreign(text: object) -> str:
    """Return what another program says, such as its error, without this process's secrets."""
    return _masks().foreign(str(text))


def explained(value: Any) -> Any:
    """Mappings and sequences whose texts that explain faults have no secrets; no other text."""
    if isinstance(value, Mapping):
        return {
            name: own(inner) if name in EXPLAINS and isinstance(inner, str) else explained(inner)
            for name, inner in value.items()
        }
    return [*map(explained, value)] if isinstance(value, list | tuple) else value


def own(text: str) -> str:
    """A message of ours without this process's secrets, should one have come past `foreign`."""
    return _masks().own(text)
