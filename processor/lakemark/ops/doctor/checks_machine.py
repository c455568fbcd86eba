"""This machine: Java, jars, Python, folders, from facts to findings. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lakemark.model.findings import Finding, fine, warning, wrong
from lakemark.settings import own_files

CHECKS: Final = ("java", "jars", "python", "folder", "cache", "secret")

OLDEST_JAVA: Final = 17
"""What Spark 4 needs at least."""

LITTLE_DISK: Final = 2 * 1024**3
"""Free bytes below which a warning is due: a batch stages its write, a merge rewrites files."""


@dataclass(frozen=True, slots=True)
class Java:
    """The java that Spark would run.

    Attributes:
        command: its path; empty if there is none.
        version: as java prints it, such as 17.0.9; empty if it does not run.
        error: the reason why there is none or why it does not run.
    """

    command: str
    version: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The Python that Spark's workers would run.

    Attributes:
        command: where it is.
        said_by: the setting that names it; empty when it is this very interpreter.
        python: major and minor version, such as 3.11; empty if it does not run.
        lakemark: version of lakemark that it imports; empty if it has none.
        error: why it does not run.
    """

    command: str
    said_by: str
    python: str
    lakemark: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Folder:
    """A place that lakemark writes to.

    Attributes:
        setting: what names it.
        path: where it is.
        error: why a probe could not be written and removed; empty if it could.
        unseen: why no probe could be tried; empty if one was.
        free: bytes left; None when unknown.
        made: whether the folder exists already.
    """

    setting: str
    path: str
    error: str = ""
    unseen: str = ""
    free: int | None = None
    made: bool = True


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder of the cache whose files are run.

    Attributes:
        path: where it is.
        distrusted: why somebody else may have written it; empty if nobody may.
    """

    path: str
    distrusted: str = ""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Facts about this machine.

    Attributes:
        java: the one that Spark would run.
        jars: how many are pinned.
        absent: coordinates of those that the cache lacks.
        cache: where the jars are kept.
        jars_error: why the list of jars cannot be read.
        own: this interpreter.
        workers: the interpreter of Spark's workers.
        master: spark.master, empty for a local session.
        folders: checkpoint and lake.
        caches: folders whose files are run.
        bared: files of secrets that others can read or write, and who.
    """

    java: Java
    jars: int
    absent: tuple[str, ...]
    cache: str
    jars_error: str
    own: Interpreter
    workers: Interpreter
    master: str
    folders: tuple[Folder, ...]
    caches: tuple[Cache, ...] = ()
    bared: tuple[tuple[str, str], ...] = ()


def findings(facts: MachineFacts) -> list[Finding]:
    """Return all findings about this machine."""
    return [
        _java(facts.java),
        _jars(facts),
        _python(facts),
        *(finding for folder in facts.folders for finding in _folder(folder)),
        *map(_cache, facts.caches),
        *(warning("secret", file, why, f"chmod 600 {file}") for file, why in facts.bared),
    ]


def _cache(cache: Cache) -> Finding:
    if not cache.distrusted:
        return fine("cache", cache.path, "only this user and root can write it")
    reason = f"is not used, and made anew where that can be done: {cache.distrusted}"
    return warning("cache", cache.path, reason, own_files.HINT)


def _java(java: Java) -> Finding:
    mend = f"install Java {OLDEST_JAVA} or 21, and set JAVA_HOME to it"
    if java.error:
        return wrong("java", java.command, java.error, mend)
    number = java.version.removeprefix("1.").split(".")[0].split("-")[0]
    if not number.isdecimal():
        return warning("java", java.command, f"says {java.version!r}: no version known", mend)
    if int(number) < OLDEST_JAVA:
        reason = f"is version {java.version}, Spark needs {OLDEST_JAVA}"
        return wrong("java", java.command, reason, mend)
    return fine("java", java.command, f"version {java.version}")


def _jars(facts: MachineFacts) -> Finding:
    if facts.jars_error:
        return wrong("jars", facts.cache, facts.jars_error, "install lakemark again")
    if facts.absent:
        return warning(
            "jars",
            facts.cache,
            f"{len(facts.absent)} of {facts.jars} are not there or damaged, first"
            f" {facts.absent[0]}: the next `lakemark run` fetches them",
            "see that Maven Central (or the mirror in ~/.m2/settings.xml) can be reached, or set"
            " LAKEMARK_CACHE to a folder that has them",
        )
    return fine("jars", facts.cache, f"all {facts.jars} are there, with their checksums")


def _python(facts: MachineFacts) -> Finding:
    driver, workers = facts.own, facts.workers
    mend = f"unset {workers.said_by}, or set it to {driver.command}"
    cluster = bool(facts.master) and not facts.master.startswith("local")
    if workers.error and cluster:  # a path of the workers, or of an archive that is sent to them
        return _unseen(facts, f"is not on this machine ({workers.error})")
    if workers.error:
        return wrong("python", workers.command, workers.error, mend)
    if workers.python != driver.python:
        reason = (
            f"workers would run Python {workers.python}, this is {driver.python}: Spark refuses"
        )
        return wrong("python", workers.command, reason, mend)
    if workers.lakemark != driver.lakemark:
        has = f"lakemark {workers.lakemark}" if workers.lakemark else "no lakemark"
        reason = f"workers would have {has}, this is {driver.lakemark}: both must be the same"
        return wrong("python", workers.command, reason, mend)
    if cluster:
        return _unseen(facts, "right on this machine")
    return fine("python", workers.command, f"{driver.python}, for workers too")


def _unseen(facts: MachineFacts, here: str) -> Finding:
    return warning(
        "python",
        facts.workers.command,
        f"{here}; those of the cluster {facts.master} cannot be seen from here",
        f"have Python {facts.own.python} and lakemark {facts.own.lakemark} on every node",
    )


def _folder(folder: Folder) -> Iterator[Finding]:
    subject = f"{folder.setting} {folder.path}"
    if folder.unseen:
        mend = "see that the first `lakemark run` goes through"
        yield warning("folder", subject, folder.unseen, mend)
    elif folder.error:
        yield wrong(
            "folder",
            subject,
            f"cannot be written: {folder.error}",
            "give this user the right to write there (object stores: lake.storage_options), or set"
            f" {folder.setting} to another place",
        )
    elif folder.free is not None and folder.free < LITTLE_DISK:
        left = f"{folder.free / 1024**2:,.0f} MiB are left on its disk"
        yield warning("folder", subject, left, "make room, or set it to a larger disk")
    else:
        also = "can be written" if folder.made else "is not there yet, and can be made"
        yield fine("folder", subject, also)
