"""A checkpoint's files through Hadoop's client in the driver's JVM: wherever Spark can write."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JJavaError

from lakemark.settings.masking import foreign
from lakemark.state.checkpoint_files import unavailable

_MISSING: Final = ("java.io.FileNotFoundException", "java.nio.file.NoSuchFileException")


class HadoopFiles:
    """See `Files`.

    Args:
        jvm: the driver's, of Py4J.
        hadoop: Hadoop's configuration, with the user's settings.
        path: of the folder.
    """

    def __init__(self, jvm: Any, hadoop: Any, path: str) -> None:
        self._path_class = jvm.org.apache.hadoop.fs.Path
        self._io = jvm.org.apache.hadoop.io.IOUtils
        self._bytes = jvm.java.io.ByteArrayOutputStream
        self._path = path
        with self._reached():
            self._files = self._path_class(path).getFileSystem(hadoop)

    def read(self, name: str) -> bytes | None:
        """See `Files`."""
        with self._reached():
            try:
                source, sink = self._files.open(self._place(name)), self._bytes()
                self._io.copyBytes(source, sink, 65536, True)  # noqa: FBT003
            except Py4JJavaError as error:
                if str(error.java_exception.getClass().getName()) in _MISSING:
                    return None
                raise
            return bytes(sink.toByteArray())

    def create(self, name: str, blob: bytes) -> None:
        """See `Files`."""
        with self._reached():
            out = self._files.create(self._place(name), True)  # noqa: FBT003
            try:
                out.write(bytearray(blob))
                out.hsync()
            finally:
                out.close()

    def exists(self, name: str) -> bool:
        """See `Files`."""
        with self._reached():
            return bool(self._files.exists(self._place(name)))

    def rename(self, name: str, to: str) -> bool:
        """See `Files`."""
        with self._reached():
            return bool(self._files.rename(self._place(name), self._place(to)))

    def delete(self, name: str) -> None:
        """See `Files`."""
        with self._reached():
            self._files.delete(self._place(name), False)  # noqa: FBT003 - Hadoop's signature

    def names(self, folder: str) -> list[str]:
        """See `Files`."""
        path = self._place(folder)
        with self._reached():
            if not self._files.exists(path):
                return []
            return [str(status.getPath().getName()) for status in self._files.listStatus(path)]

    def _place(self, name: str) -> Any:
        return self._path_class(f"{self._path}/{name}")

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Turn any error of Java's file system into `DependencyError`, with its reason."""
        try:
            yield
        except Py4JJavaError as error:
            reason = foreign(error.java_exception.toString()).partition("\n")[0]
            raise unavailable(self._path, reason) from error
