"""The user's Maven settings for the way to Maven Central: mirror and proxy.

Ivy, which fetches our jars, does not read `~/.m2/settings.xml`; a user behind a mirror or a proxy
has configured it there. Nothing of it is kept: a password is given to one run of Ivy.
"""

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies
from xml.etree import ElementTree as ET
from xml.sax.saxutils import quoteattr


class MavenSettingsError(Exception):
    """The user's Maven settings cannot be read; `jars` says so as a `JarError`."""


@dataclass(frozen=True, slots=True)
class MavenSettings:
    """The parts of the user's `~/.m2/settings.xml` that decide where and how files are fetched."""

    mirror: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    proxy_host: str = ""
    proxy_port: str = ""
    no_proxy: str = ""


def read_maven_settings(home: Path | None = None) -> MavenSettings:
    """Read the mirror of Maven Central and the active proxy from the user's Maven settings.

    Passwords that Maven has encrypted are not read: Maven alone can open them.
    """
    path = (home or Path.home()) / ".m2" / "settings.xml"
    try:
        root = ET.fromstring(path.read_text(encoding="utf-8"))  # noqa: S314 - user's own
    except FileNotFoundError:
        return MavenSettings()
    except (OSError, ET.ParseError) as error:
        raise MavenSettingsError(f"Maven's settings {path} cannot be read: {error}") from error
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]  # with or without Maven's namespace
    mirror = next((m for m in root.iter("mirror") if _covers_central(_text(m, "mirrorOf"))), None)
    server = next(
        (s for s in root.iter("server") if mirror is not None and _same(s, mirror, "id")), None
    )
    proxy = next((p for p in root.iter("proxy") if _text(p, "active") != "false"), None)
    password = _text(server, "password")
    return MavenSettings(
        mirror=_text(mirror, "url"),
        username=_text(server, "username"),
        password="" if password.startswith("{") else password,
        proxy_host=_text(proxy, "host"),
        proxy_port=_text(proxy, "port"),
        no_proxy=_text(proxy, "nonProxyHosts"),
    )


def _text(element: ET.Element | None, child: str) -> str:
    return "" if element is None else (element.findtext(child) or "").strip()


def _same(one: ET.Element, other: ET.Element, child: str) -> bool:
    return _text(one, child) == _text(other, child)


def _covers_central(mirror_of: str) -> bool:
    """Tell whether Maven would use a mirror with this `mirrorOf` for Maven Central."""
    patterns = [pattern.strip() for pattern in mirror_of.split(",")]
    return "!central" not in patterns and bool({"*", "central", "external:*"} & set(patterns))


def ivy_settings(maven: MavenSettings) -> str:
    """Return Ivy's settings: one repository, Maven Central unless the user has a mirror of it.

    No POMs and no checksum files are asked for (the list is exact and pinned): one request a file.
    """
    mirror = f" root={quoteattr(maven.mirror)}" if maven.mirror else ""
    credentials = ""
    if maven.username and maven.password:
        credentials = (
            f'<credentials host={quoteattr(urlsplit(maven.mirror).hostname or "")} realm=""'
            f" username={quoteattr(maven.username)} passwd={quoteattr(maven.password)}/>"
        )
    return (
        f'<ivysettings><settings defaultResolver="maven"/>{credentials}<resolvers>'
        '<ibiblio name="maven" m2compatible="true" usepoms="false" useMavenMetadata="false"'
        f' checksums=""{mirror}/></resolvers></ivysettings>\n'
    )


def proxy_options(maven: MavenSettings) -> list[str]:
    """Return Java's options for the proxy of Maven's settings, else of the environment."""
    host, port, direct = maven.proxy_host, maven.proxy_port, maven.no_proxy
    if not host:
        proxies = getproxies()
        address = urlsplit(proxies.get("https") or proxies.get("http") or "")
        host, port = address.hostname or "", str(address.port or "")
        direct = "|".join(
            f"*{name}" if name.startswith(".") else name
            for name in (part.strip() for part in proxies.get("no", "").split(","))
            if name
        )
    if not host:
        return []
    options = [f"-D{scheme}.proxyHost={host}" for scheme in ("http", "https")]
    options += [f"-D{scheme}.proxyPort={port}" for scheme in ("http", "https") if port]
    return options + ([f"-Dhttp.nonProxyHosts={direct}"] if direct else [])
