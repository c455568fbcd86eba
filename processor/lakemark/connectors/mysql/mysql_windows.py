"""MariaDB: where the log ends, in place of rows that open and close windows."""

from lakemark.connectors.database import OpenWindow, Proof, Watermark
from lakemark.connectors.mysql.mariadb_snapshot import consistent_snapshot
from lakemark.connectors.mysql.mysql_session import Session


def log_end(session: Session, *, opens: OpenWindow | None) -> Watermark | Proof:
    """Return where the log ends now: what a written window would tell (`WindowWriter.write`).

    Args:
        session: outside a transaction.
        opens: the window that begins; None at the end of a run.

    Raises:
        ConfigError, DependencyError, pymysql.MySQLError: as `consistent_snapshot`.
    """
    with consistent_snapshot(session) as place:
        return place if opens is None else Watermark(str(opens.uuid), place, place.place)
