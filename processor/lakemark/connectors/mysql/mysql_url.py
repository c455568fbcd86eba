"""MySQL and MariaDB: ``database.url`` and what it says of encryption. Pure, but for certificates.

``mysql://user@host:3306/shop?ssl-mode=verify-identity&ssl-ca=/etc/ca.pem``; ``mariadb://`` is the
same. The parameters are called as those of the servers' own clients.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from lakemark.settings.config import DatabaseConfig
from lakemark.settings.layers import InvalidConfig, Mistake

SCHEMES: Final = ("mysql", "mariadb")
EXAMPLE: Final = "mysql://USER@HOST:3306/DATABASE"
PORT: Final = 3306
MODES: Final = ("disabled", "preferred", "required", "verify-ca", "verify-identity")
_FILES: Final = ("ssl-ca", "ssl-cert", "ssl-key")
_HINT: Final = (
    "behind the ? stand ssl-mode (" + ", ".join(MODES) + "), " + ", ".join(_FILES)
    + ": ssl-mode=verify-identity&ssl-ca=/etc/ca.pem"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """The server, who we are there, and how the connection is encrypted.

    Attributes:
        host, port: of the server; IPv6 without brackets.
        user: who we are.
        password: of `database.password`, else of the URL; never shown.
        database: the default database; empty for none.
        ssl_mode: one of `MODES`; ``preferred`` encrypts where the server can, and checks nothing.
        files: paths of certificates by parameter.
    """

    host: str
    port: int = PORT
    user: str = ""
    password: str = field(default="", repr=False)
    database: str = ""
    ssl_mode: str = "preferred"
    files: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, config: DatabaseConfig) -> "DatabaseAddress":
        """Return the address that ``database.url`` has.

        Raises:
            InvalidConfig: a parameter or a port that nobody understands.
        """
        parts = urlsplit(config.url)
        try:
            port = parts.port or PORT
        except ValueError:
            raise _wrong("the port is no number up to 65535") from None
        mode, files = _encryption(config.url)
        password = unquote(parts.password or "")
        if config.password is not None:
            password = config.password.get_secret_value()
        return cls(
            host=parts.hostname or "localhost",
            port=port,
            user=unquote(parts.username or ""),
            password=password,
            database=unquote(parts.path.removeprefix("/")),
            ssl_mode=mode,
            files=files,
        )

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return what a connection that must be encrypted is encrypted with; else None.

        Raises:
            InvalidConfig: a file of certificates is not there, or is none.
        """
        if self.ssl_mode in ("disabled", "preferred"):
            return None
        try:
            context = ssl.create_default_context(cafile=self.files.get("ssl-ca"))
            if "ssl-cert" in self.files:
                context.load_cert_chain(self.files["ssl-cert"], self.files.get("ssl-key"))
        except (OSError, ssl.SSLError) as error:
            raise _wrong(f"the certificates cannot be read: {type(error).__name__}") from error
        # The servers make certificates of their own that Python's strict checks refuse.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.check_hostname = self.ssl_mode == "verify-identity"
        if self.ssl_mode == "required":
            context.verify_mode = ssl.CERT_NONE
        return context


def _encryption(url: str) -> tuple[str, dict[str, str]]:
    given = dict(parse_qsl(url.partition("?")[2], keep_blank_values=True))
    unknown = [name for name in given if name not in ("ssl-mode", *_FILES)]
    if unknown:
        raise _wrong(f"there is no parameter {', '.join(unknown)}")
    files = {name: given[name] for name in _FILES if given.get(name)}
    usual = "verify-ca" if "ssl-ca" in files else "required" if files else "preferred"
    mode = given.get("ssl-mode", usual).strip().lower().replace("_", "-")
    if mode not in MODES:
        raise _wrong(f"there is no ssl-mode {mode}")
    if files and mode in ("disabled", "preferred"):
        raise _wrong(f"ssl-mode {mode} makes no use of {', '.join(files)}")
    return mode, files


def _wrong(message: str) -> InvalidConfig:
    return InvalidConfig([Mistake("database.url", message, _HINT)])
