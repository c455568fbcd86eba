"""The numbers of a verify run; pure."""

import msgspec


class VerifyTally(msgspec.Struct, omit_defaults=True):
    """The numbers of a table of a verify run.

    Attributes:
        scanned: rows of the source that were compared, one by one or in sums.
        sent: of these, rows that the database has sent.
        source_bytes: that the database has sent: of these rows, and sums.
        lake_bytes: of the lake's columns that were read.
        suspects: keys whose digests were not alike, and that are read again.
        left: such keys beyond what a run reads again.
        compared: rows that were compared one by one, or keys without one.
        newer: keys that a newer event decides, or a read that the stream has asked for.
        missing, extra, differing, duplicate: rows that are not alike, see `sink.comparison`.
    """

    scanned: int = 0
    sent: int = 0
    source_bytes: int = 0
    lake_bytes: int = 0
    suspects: int = 0
    left: int = 0
    compared: int = 0
    newer: int = 0
    missing: int = 0
    extra: int = 0
    differing: int = 0
    duplicate: int = 0

    @property
    def unlike(self) -> int:
        """The number of rows that are not alike."""
        return self.missing + self.extra + self.differing + self.duplicate

    def add(self, other: "VerifyTally") -> None:
        """Add another table's, or chunk's."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
