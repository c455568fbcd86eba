"""Looks at this machine for `checks_machine`. Probe files are removed again; nothing is fetched."""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any, Final

from deltalake._internal import DeltaFileSystemHandler

from lakemark.ops.doctor.checks_machine import Cache, Folder, Interpreter, Java, MachineFacts
from lakemark.ops.stored_state import local
from lakemark.settings import cache, own_files
from lakemark.settings.config import Config
from lakemark.settings.masking import foreign
from lakemark.settings.security import AWS_MSK_IAM
from lakemark.spark import jars
from lakemark.version import __version__

_START_S: Final = 20.0  # a JVM or an interpreter on a busy machine takes two
_ASK: Final = (
    "import sys\nprint('%d.%d' % sys.version_info[:2])\n"
    "try:\n import lakemark\n print(lakemark.__version__)\nexcept ImportError: pass"
)
_VERSION: Final = re.compile(r'version "([^"]+)"')
# In Spark's own order: a setting wins over the environment.
_PYTHONS: Final = ("spark.pyspark.python", "PYSPARK_PYTHON")


def machine_facts(config: Config) -> MachineFacts:
    """Return all facts about this machine. Never raises: a failure is a fact."""
    driver = Interpreter(sys.executable, "", _minor(), __version__)
    error, count = "", 0
    absent: tuple[str, ...] = ()
    try:
        lists = jars.lists(msk_iam=config.kafka.security.sasl_mechanism == AWS_MSK_IAM)
        count = sum(len(jars.read_list(one)) for one in lists)
        absent = tuple(jar.coordinates for one in lists for jar in jars.absent(one))
    except jars.JarError as found:
        error = found.message
    return MachineFacts(
        java=_java(),
        jars=count,
        absent=absent,
        cache=str(cache.cache_dir()),
        jars_error=error,
        own=driver,
        workers=_workers(config, driver),
        master=config.spark_options().get("spark.master", ""),
        folders=(
            _folder("checkpoint", config.checkpoint, config),
            _folder("lake.path", config.lake.path, config),
        ),
        caches=tuple(Cache(str(folder), why) for folder, why in cache.trust()),
        bared=tuple((str(file), why) for file, why in own_files.bared(config.secret_files())),
    )


def _minor() -> str:
    return ".".join(platform.python_version_tuple()[:2])


def _java() -> Java:
    try:
        command = jars.java()
        said = _said([command, "-version"])
    except jars.JarError as error:
        return Java("", "", error.message)
    except (OSError, subprocess.SubprocessError) as error:
        return Java(command, "", f"does not run: {_plain(error)}")
    match = _VERSION.search(said)
    if match is None:
        return Java(command, "", "does not say its version: it is no Java, or a broken one")
    return Java(command, match[1])


def _workers(config: Config, driver: Interpreter) -> Interpreter:
    settings = {**os.environ, **config.spark_options()}
    said_by = next((name for name in _PYTHONS if settings.get(name)), "")
    command = settings.get(said_by, "") if said_by else driver.command
    if command == driver.command:
        return driver
    try:
        lines = _said([command, "-c", _ASK]).splitlines()
    except (OSError, subprocess.SubprocessError) as error:
        return Interpreter(command, said_by, "", "", f"does not run: {_plain(error)}")
    python, lakemark = [*lines, "", ""][:2]
    return Interpreter(command, said_by, python, lakemark)


def _said(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_START_S, check=True)
    return done.stdout + done.stderr


def _plain(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no answer within {_START_S:.0f} s"
    if isinstance(error, subprocess.CalledProcessError):
        lines = str(error.stderr).strip().splitlines()
        return lines[-1][:200] if lines else f"exit code {error.returncode}"
    return getattr(error, "strerror", None) or type(error).__name__


def _folder(setting: str, path: str, config: Config) -> Folder:
    place = local(path)
    if place is not None:
        return _local_folder(setting, path, place)
    if path.startswith("hdfs:"):
        return Folder(setting, path, unseen="on Hadoop, which only Spark can reach: not tried")
    name = f".lakemark-probe-{uuid.uuid4()}"
    try:
        handler: Any = DeltaFileSystemHandler(path, config.lake.options())
        out = handler.open_output_stream(name, None)
        out.write(b"probe")
        out.close()
        handler.delete_file(name)
    except (OSError, ValueError) as error:
        return Folder(setting, path, foreign(error).splitlines()[0])
    return Folder(setting, path)


def _local_folder(setting: str, path: str, place: Path) -> Folder:
    """Probe a folder, or the nearest one above it that exists: the rest would be made in it."""
    made = place
    try:
        while not made.exists() and made != made.parent:
            made = made.parent
        with tempfile.TemporaryFile(prefix=".lakemark-probe-", dir=made) as probe:
            probe.write(b"probe")
            probe.flush()
        free = shutil.disk_usage(made).free
    except OSError as error:
        return Folder(setting, path, f"{error.strerror} ({made})")
    return Folder(setting, path, free=free, made=made == place)
