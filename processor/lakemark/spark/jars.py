"""The jars that Spark needs beside its own, fetched once and checked on every use.

A jar list is a JSON object: Maven coordinates (`group:artifact:version[:classifier[:extension]]`)
to the SHA-256 of the file. The list is exact and nothing is resolved: what it names is what runs,
and a mirror that serves something else is an error.

Missing files are fetched by Ivy, which comes with PySpark, from Maven Central or from the mirror
in the user's own `~/.m2/settings.xml`. Order of effects of `fetch`:

1. look into the cache; done if every file is there with its SHA-256,
2. take the cache's lock (two processes never fetch the same file),
3. fetch what is still missing into a directory of its own, in up to three attempts,
4. check each file's SHA-256, then move it to its place in one step.

A process that dies at any point leaves no half-written jar behind.
"""

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from lakemark.errors import LakemarkError
from lakemark.settings.cache import cache_dir
from lakemark.spark.maven import (
    MavenSettingsError,
    ivy_settings,
    proxy_options,
    read_maven_settings,
)

RUNTIME_LIST = Path(__file__).with_name("jars.json")
"""The list of `runtime_jars`: Delta, Spark's Kafka source and what they need."""

MSK_IAM_LIST = Path(__file__).with_name("jars_msk_iam.json")
"""What Spark's Kafka source needs besides where `sasl_mechanism` is AWS_MSK_IAM."""

ATTEMPTS = 3
"""Tries per fetch; with the pauses below about four seconds are added before giving up."""

BACKOFF_S = 1.3
"""Pause before attempt n + 1 is n times this."""

Progress = Callable[[str], None]


class JarError(LakemarkError):
    """A jar that Spark needs cannot be had, or is not the one that was pinned."""

    code = "jars-unavailable"


@dataclass(frozen=True, slots=True, order=True)
class Jar:
    """One pinned file of a Maven repository.

    Attributes:
        group: the group id, e.g. `io.delta`.
        artifact: the artifact id.
        version: the exact version.
        classifier: the classifier, empty for the main artifact.
        extension: the file's extension, nearly always `jar`.
        sha256: the file's SHA-256 in lower-case hex.
    """

    group: str
    artifact: str
    version: str
    classifier: str
    extension: str
    sha256: str

    @classmethod
    def parse(cls, coordinates: str, sha256: str) -> "Jar":
        """Read `group:artifact:version[:classifier[:extension]]`.

        Raises:
            JarError: if the coordinates or the checksum are malformed.
        """
        parts = coordinates.split(":")
        if not 3 <= len(parts) <= 5 or not all(parts[:3]):  # noqa: PLR2004 - the form above
            raise JarError(
                f"{coordinates!r} are no Maven coordinates",
                hint="write group:artifact:version[:classifier[:extension]] in the jar list",
            )
        if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):  # noqa: PLR2004 - hex
            raise JarError(
                f"the checksum of {coordinates} is no SHA-256",
                hint="write 64 lower-case hex digits in the jar list",
            )
        group, artifact, version, classifier, extension = [*parts, "", ""][:5]
        return cls(group, artifact, version, classifier, extension or "jar", sha256)

    @property
    def coordinates(self) -> str:
        """The coordinates as a jar list has them."""
        tail = f":{self.classifier}" if self.classifier else ""
        return f"{self.group}:{self.artifact}:{self.version}{tail}"

    @property
    def filename(self) -> str:
        """The file's name as Maven repositories have it."""
        tail = f"-{self.classifier}" if self.classifier else ""
        return f"{self.artifact}-{self.version}{tail}.{self.extension}"

    def path(self, root: Path) -> Path:
        """Return the file's place below `root`."""
        return root / self.group / self.filename


def lists(*, msk_iam: bool = False) -> list[Path]:
    """Return the jar lists of `runtime_jars`."""
    return [RUNTIME_LIST, MSK_IAM_LIST] if msk_iam else [RUNTIME_LIST]


def runtime_jars(
    *, msk_iam: bool = False, cache: Path | None = None, progress: Progress | None = None
) -> list[Path]:
    """Return the jars for `spark.jars`, fetching those that the cache does not have.

    Args:
        msk_iam: whether clients prove who they are by AWS IAM.
        cache: the cache directory, `cache_dir()` unless given.
        progress: told in a few words what is being fetched; never called if nothing is.

    Raises:
        JarError: if a jar cannot be fetched or has another checksum.
    """
    found = (fetch(one, cache=cache, progress=progress) for one in lists(msk_iam=msk_iam))
    return [path for paths in found for path in paths]


def fetch(
    jar_list: Path, *, cache: Path | None = None, progress: Progress | None = None
) -> list[Path]:
    """Return the files of a jar list in the list's order, fetching those that are missing.

    Safe to call from several processes at once: one fetches, the others wait for it. Every file is
    checked against its SHA-256 on every call; a damaged one is fetched again.

    Args:
        jar_list: a JSON file, coordinates to SHA-256.
        cache: the cache directory, `cache_dir()` unless given.
        progress: told in a few words what is being fetched; never called if nothing is.

    Raises:
        JarError: if the list is malformed, or a file cannot be fetched or has another checksum.
    """
    jars = read_list(jar_list)
    root = (cache or cache_dir()) / "jars"
    if _missing(jars, root):
        with _locked(root):
            _fetch_missing(jars, root=root, progress=progress or _silent)
    return [jar.path(root) for jar in jars]


def absent(jar_list: Path = RUNTIME_LIST, *, cache: Path | None = None) -> list[Jar]:
    """Return the files of a jar list that would have to be fetched; nothing is.

    Raises:
        JarError: if the list is malformed.
    """
    return _missing(read_list(jar_list), (cache or cache_dir()) / "jars")


def read_list(jar_list: Path) -> list[Jar]:
    """Read a jar list.

    Raises:
        JarError: if the file is missing, is no JSON object of strings or has a malformed entry.
    """
    try:
        entries = json.loads(jar_list.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise JarError(
            f"the jar list {jar_list} cannot be read: {error}",
            hint="install lakemark again; the list is part of the package",
        ) from error
    if not isinstance(entries, dict) or not all(isinstance(v, str) for v in entries.values()):
        raise JarError(
            f"the jar list {jar_list} is not an object of coordinates to SHA-256",
            hint="install lakemark again; the list is part of the package",
        )
    return [Jar.parse(coordinates, sha256) for coordinates, sha256 in entries.items()]


def _silent(_: str) -> None:
    """Tell nobody."""


def _missing(jars: Iterable[Jar], root: Path) -> list[Jar]:
    return [jar for jar in jars if not _is_intact(jar.path(root), jar.sha256)]


def _is_intact(path: Path, sha256: str) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except (FileNotFoundError, NotADirectoryError):
        return False


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Hold the cache's lock; the kernel lets it go when the process ends, however it ends."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        handle = (root / ".lock").open("a")
    except OSError as error:
        raise JarError(
            f"the jar cache {root} cannot be written: {error.strerror}",
            hint="set LAKEMARK_CACHE to a directory that this user may write",
        ) from error
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _fetch_missing(jars: list[Jar], *, root: Path, progress: Progress) -> None:
    """Fetch and check what is missing, with the lock held."""
    output = ""
    for attempt in range(ATTEMPTS):
        missing = _missing(jars, root)
        if not missing:
            return
        if attempt:
            progress(f"{len(missing)} files are still missing, trying again")
            time.sleep(BACKOFF_S * attempt)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=root) as scratch:
            output = _run_ivy(missing, scratch=Path(scratch), progress=progress)
            _take_over(missing, Path(scratch) / "lib", root)
    missing = _missing(jars, root)
    if missing:
        raise JarError(
            f"{len(missing)} of {len(jars)} jars could not be fetched in {ATTEMPTS} attempts,"
            f" first {missing[0].coordinates}: {_reason(output)}",
            hint=_hint(output, root),
        )


def _hint(output: str, root: Path) -> str:
    if "PKIX" in output:
        return (
            "this Java does not trust the certificate of the repository (or of a proxy before it): "
            "name a trust store that does in JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore=…"
        )
    return (
        "check the way to Maven Central (or the mirror and proxy in ~/.m2/settings.xml), "
        f"or put the files below {root}/<group>/ yourself"
    )


def _take_over(jars: Iterable[Jar], source: Path, root: Path) -> None:
    """Check fetched files and move each to its place in one step."""
    for jar in jars:
        fetched = jar.path(source)
        if not fetched.exists():
            continue
        if not _is_intact(fetched, jar.sha256):
            with fetched.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            raise JarError(
                f"{jar.coordinates} has SHA-256 {found}, pinned is {jar.sha256}",
                hint="do not use this file: find out who serves it (the mirror in "
                "~/.m2/settings.xml, a proxy) before trying again",
            )
        place = jar.path(root)
        place.parent.mkdir(parents=True, exist_ok=True)
        fetched.replace(place)


def _run_ivy(jars: list[Jar], *, scratch: Path, progress: Progress) -> str:
    """Let Ivy fetch files into `scratch`/lib and return what it printed.

    Ivy's exit code says nothing (it is 0 for some failures and 1 if a single file is missing), so
    the caller looks at the files.
    """
    module = scratch / "ivy.xml"
    module.write_text(_ivy_module(jars), encoding="utf-8")
    settings = scratch / "ivysettings.xml"
    settings.touch(mode=0o600)  # may hold the password of the user's mirror
    try:
        maven = read_maven_settings()
    except MavenSettingsError as error:
        raise JarError(str(error), hint="repair or remove the file") from error
    settings.write_text(ivy_settings(maven), encoding="utf-8")
    command = [
        java(),
        "-XX:TieredStopAtLevel=1",  # lives for seconds: 3 s of processor time instead of 10
        "-XX:+UseSerialGC",
        *proxy_options(maven),
        *("-cp", str(pyspark_jars() / "*"), "org.apache.ivy.Main"),
        *("-settings", str(settings), "-ivy", str(module), "-cache", str(scratch / "cache")),
        *("-confs", "default"),
        *("-retrieve", f"{scratch}/lib/[organisation]/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    progress(f"fetching {len(jars)} files from the Maven repository")
    try:
        return _follow(command, len(jars), progress)
    except OSError as error:
        raise JarError(
            f"{command[0]} cannot be run: {error.strerror}",
            hint="install Java 17 or 21, or set JAVA_HOME to one",
        ) from error


def _follow(command: list[str], total: int, progress: Progress) -> str:
    """Run Ivy, tell how far it is, and return what it printed."""
    lines: list[str] = []
    done = 0
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as ivy:
        for line in ivy.stdout or ():
            lines.append(line)
            if "[SUCCESSFUL ]" in line:
                done += 1
                if done % 10 == 0 or done == total:
                    progress(f"fetched {done} of {total} files")
    return "".join(lines)


def _ivy_module(jars: Iterable[Jar]) -> str:
    """Return Ivy's description of the wanted files: exactly these, nothing behind them."""
    dependencies = "\n".join(_ivy_dependency(jar) for jar in jars)
    return (
        '<ivy-module version="2.0" xmlns:e="http://ant.apache.org/ivy/extra">\n'
        '<info organisation="lakemark" module="jars"/>\n'
        '<configurations><conf name="default"/></configurations>\n'
        f"<dependencies>\n{dependencies}\n</dependencies>\n</ivy-module>\n"
    )


def _ivy_dependency(jar: Jar) -> str:
    name, extension = quoteattr(jar.artifact), quoteattr(jar.extension)
    classifier = f" e:classifier={quoteattr(jar.classifier)}" if jar.classifier else ""
    return (
        f"<dependency org={quoteattr(jar.group)} name={name} rev={quoteattr(jar.version)}"
        ' conf="default->default" transitive="false">'
        f"<artifact name={name} type={extension} ext={extension}{classifier}/></dependency>"
    )


def _reason(output: str) -> str:
    """Pick the line of Ivy's output that says most."""
    lines = [line.strip() for line in output.splitlines()]
    for sign in ("Exception", "ERROR", "FAILED", "not found", "Error"):
        for line in lines:
            if sign in line:
                return line[:300]
    return lines[-1][:300] if lines else "Ivy printed nothing"


def java() -> str:
    """Return the java command that Spark would use.

    Raises:
        JarError: there is none.
    """
    if home := os.environ.get("JAVA_HOME"):
        return str(Path(home) / "bin" / "java")
    if java := shutil.which("java"):
        return java
    raise JarError(
        "no Java was found (looked at JAVA_HOME, then for java on PATH)",
        hint="install Java 17 or 21, or set JAVA_HOME to one",
    )


def pyspark_jars() -> Path:
    """Return the folder of PySpark's own jars without importing PySpark.

    Raises:
        JarError: PySpark is not installed.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarError(
            "PySpark is not installed", hint="install lakemark with its dependencies again"
        )
    return Path(spec.origin).parent / "jars"
