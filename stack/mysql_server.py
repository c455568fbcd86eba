"""MySQL 9.7 from Debian's unstable packages, for machines with apt on x86-64.

There is no other registry with a MySQL server. The packages are fetched by an apt of our own, which
installs nothing and leaves the machine's alone; apt checks their signatures. That suite moves: who
has fetched once keeps what was there, and where another version has come, there is no MySQL.
"""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lakemark.settings.cache import cache_dir
from stack.archives import made_once
from stack.mysql import USER, LocalBinlogServer, LogStatements, as_root
from stack.processes import StackError

VERSION: Final = "9.7"
"""The version that is wanted: another one is refused."""

_PACKAGE: Final = "mysql-server-core"
_SUITE: Final = "sid"
_LIBRARIES: Final = Path("usr/lib/x86_64-linux-gnu")
_WITHOUT: Final = ("perl", "libperl")
"""Beginnings of packages that only the server's scripts need."""

_FIRST_STATEMENTS: Final = f"""
CREATE USER '{USER}'@'127.0.0.1' IDENTIFIED BY '';
GRANT ALL ON *.* TO '{USER}'@'127.0.0.1' WITH GRANT OPTION;
"""


class CannotBeHadError(StackError):
    """There is no MySQL of this version for this machine; tests are skipped then."""


class MySql(LocalBinlogServer):
    """A MySQL server, see `LocalBinlogServer`."""

    name = f"MySQL {VERSION}"
    connector = "mysql"
    statements = LogStatements(
        end="SHOW BINARY LOG STATUS",
        gtids="SELECT @@global.gtid_executed",
        wait="SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, %s)",
        follow=(
            (
                "CHANGE REPLICATION SOURCE TO SOURCE_HOST = %s, SOURCE_PORT = %s, SOURCE_USER = %s,"
                " SOURCE_CONNECT_RETRY = 1, SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1"
            ),
            "START REPLICA",
        ),
        promote=("STOP REPLICA", "RESET REPLICA ALL"),
    )
    product_settings: Mapping[str, str] = {
        "gtid_mode": "ON",
        "enforce_gtid_consistency": "ON",
        "mysqlx": "OFF",
    }

    def fetch(self) -> Path:
        """Return the directory with the server and its libraries, fetched if it is not there.

        Raises:
            CannotBeHadError: not on this machine, or not in this version.
        """
        return made_once(cache_dir() / "mysql" / f"server-{VERSION}", _fetch)

    def sibling(self, directory: Path, number: int) -> "MySql":
        """Return another server of the same settings, which is not started."""
        return MySql(
            directory=directory, log=directory / "log", settings=self.settings, number=number
        )

    def _program(self) -> list[str]:
        root = self.fetch()
        return [
            str(root / _LIBRARIES / "ld-linux-x86-64.so.2"),
            *("--library-path", str(root / _LIBRARIES)),
            str(root / "usr/sbin/mysqld"),
            "--no-defaults",
            f"--basedir={root / 'usr'}",
            f"--lc-messages-dir={root / 'usr/share/mysql'}",
            f"--character-sets-dir={root / 'usr/share/mysql/charsets'}",
            f"--plugin-dir={root / 'usr/lib/mysql/plugin'}",
            "--secure-file-priv=",  # where benchmarks let it write what they compare with
            "--innodb-redo-log-capacity=32M",
            *as_root(),
        ]

    @property
    def _initialised(self) -> Path:
        return cache_dir() / "mysql" / f"data-{VERSION}"

    def _initialise(self, data: Path) -> None:
        statements = data.with_name(f"{data.name}.sql")
        statements.write_text(_FIRST_STATEMENTS, encoding="utf-8")
        try:
            _run(
                *self._program(),
                *("--initialize-insecure", "--disable-log-bin"),
                *(f"--datadir={data}", f"--init-file={statements}"),
            )
        finally:
            statements.unlink()
        (data / "auto.cnf").unlink()  # the server's uuid: each copy makes one of its own


def _fetch(root: Path) -> None:
    if not all(map(shutil.which, ("apt-get", "apt-cache", "dpkg"))):
        raise CannotBeHadError(f"MySQL {VERSION} comes by apt, and this machine has none")
    private = root / "apt"
    for folder in ("lists/partial", "cache/archives/partial", "debs"):
        (private / folder).mkdir(parents=True)
    (private / "status").touch()
    places = _run("apt-get", "indextargets", "--format", "$(REPO_URI)").split()
    archive = next((place for place in places if "security" not in place), "")
    if not archive:
        raise CannotBeHadError(
            f"MySQL {VERSION} comes by apt, and apt has no archive on this machine"
        )
    sources = private / "sources.list"
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    sources.write_text(f"deb [arch=amd64 signed-by={keys}] {archive} {_SUITE} main\n")
    options = [
        word
        for setting in (
            f"Dir::Etc::sourcelist={sources}",
            "Dir::Etc::sourceparts=-",
            f"Dir::State::lists={private / 'lists'}",
            f"Dir::State::status={private / 'status'}",
            f"Dir::Cache={private / 'cache'}",
            "Acquire::Languages=none",
            "APT::Sandbox::User=",
        )
        for word in ("-o", setting)
    ]
    try:
        _run("apt-get", *options, "-q", "update")
    except StackError as error:
        raise CannotBeHadError(f"MySQL {VERSION} comes by apt, and it cannot: {error}") from error
    shown = _run("apt-cache", *options, "show", "--no-all-versions", _PACKAGE)
    version = next((x.split()[1] for x in shown.splitlines() if x.startswith("Version:")), "none")
    if not version.startswith(f"{VERSION}."):
        raise CannotBeHadError(f"{_SUITE} has {_PACKAGE} {version}, and {VERSION} is wanted")
    no = [f"--no-{kind}" for kind in ("recommends", "suggests", "conflicts", "breaks", "replaces")]
    tree = _run("apt-cache", *options, "depends", "--recurse", "--no-enhances", *no, _PACKAGE)
    packages = [
        line
        for line in tree.splitlines()
        if line and line[0].isalnum() and not line.startswith(_WITHOUT)
    ]
    _run("apt-get", *options, "-q", "download", *packages, cwd=private / "debs")
    for deb in sorted((private / "debs").glob("*.deb")):
        _run("dpkg", "-x", str(deb), str(root))
    shutil.rmtree(private)


def _run(*command: str, cwd: Path | None = None) -> str:
    """Run a command and return what it prints.

    Raises:
        StackError: it fails; the message has the end of what it said.
    """
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    if result.returncode:
        raise StackError(f"{' '.join(command[:4])} failed:\n{result.stderr[-2000:]}")
    return result.stdout
