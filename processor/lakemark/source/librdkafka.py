"""The part of librdkafka's C interface that reading takes.

confluent-kafka, which brings the library, makes a Python object of every record: with its parts 2
microseconds, where the library itself needs one for fetching it.
"""

import ctypes
from collections.abc import Callable, Iterable, Mapping
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from confluent_kafka import KafkaError, KafkaException, cimpl

_LIBRARY: Final = ctypes.CDLL(cimpl.__file__)
_CONSUMER: Final = 1
_TEXT: Final = 512
_MEET_MS: Final = 2000
_TOKEN_CB: Final = ctypes.CFUNCTYPE(None, c_void_p, c_char_p, c_void_p)
_ERROR_CB: Final = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_void_p)


class KafkaMessage(ctypes.Structure):
    """`rd_kafka_message_t`."""

    _fields_ = (
        ("err", c_int),
        ("rkt", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("_private", c_void_p),
    )


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(_LIBRARY, f"rd_kafka_{name}")
    function.restype, function.argtypes = result, arguments
    return function


_conf_new = _function("conf_new", c_void_p)
_conf_set = _function("conf_set", c_int, c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)
_conf_destroy = _function("conf_destroy", None, c_void_p)
_conf_set_error_cb = _function("conf_set_error_cb", None, c_void_p, _ERROR_CB)
_conf_set_token_cb = _function("conf_set_oauthbearer_token_refresh_cb", None, c_void_p, _TOKEN_CB)
_conf_enable_sasl_queue = _function("conf_enable_sasl_queue", None, c_void_p, c_int)
_sasl_in_background = _function("sasl_background_callbacks_enable", c_void_p, c_void_p)
_set_token = _function(
    "oauthbearer_set_token", c_int, c_void_p, c_char_p, c_int64, c_char_p, c_void_p, c_size_t,
    c_char_p, c_size_t,
)  # fmt: skip
_set_token_failure = _function("oauthbearer_set_token_failure", c_int, c_void_p, c_char_p)
_new = _function("new", c_void_p, c_int, c_void_p, c_char_p, c_size_t)
_destroy = _function("destroy", None, c_void_p)
_poll_set_consumer = _function("poll_set_consumer", c_int, c_void_p)
_queue_get_consumer = _function("queue_get_consumer", c_void_p, c_void_p)
_queue_destroy = _function("queue_destroy", None, c_void_p)
_consumer_close = _function("consumer_close", c_int, c_void_p)
_list_new = _function("topic_partition_list_new", c_void_p, c_int)
_list_add = _function("topic_partition_list_add", c_void_p, c_void_p, c_char_p, c_int32)
_list_set_offset = _function(
    "topic_partition_list_set_offset", c_int, c_void_p, c_char_p, c_int32, c_int64
)
_list_destroy = _function("topic_partition_list_destroy", None, c_void_p)
_assign = _function("assign", c_int, c_void_p, c_void_p)
_incremental_assign = _function("incremental_assign", c_void_p, c_void_p, c_void_p)
_incremental_unassign = _function("incremental_unassign", c_void_p, c_void_p, c_void_p)
_error_code = _function("error_code", c_int, c_void_p)
_error_string = _function("error_string", c_char_p, c_void_p)
_error_destroy = _function("error_destroy", None, c_void_p)
_consume_batch_queue = _function(
    "consume_batch_queue", c_int64, c_void_p, c_int, c_void_p, c_size_t
)
_metadata = _function("metadata", c_int, c_void_p, c_int, c_void_p, POINTER(c_void_p), c_int)
_metadata_destroy = _function("metadata_destroy", None, c_void_p)
_topic_name = _function("topic_name", c_char_p, c_void_p)
_err2str = _function("err2str", c_char_p, c_int)
_message_destroy = _function("message_destroy", None, c_void_p)
_message_headers = _function("message_headers", c_int, c_void_p, POINTER(c_void_p))
_header_get_all = _function(
    "header_get_all", c_int, c_void_p, c_size_t, POINTER(c_char_p), POINTER(c_void_p),
    POINTER(c_size_t),
)  # fmt: skip

HEADERS_OF: Final = ctypes.cast(_message_headers, c_void_p).value or 0
"""Address of `rd_kafka_message_headers`."""
HEADER_GET_ALL: Final = ctypes.cast(_header_get_all, c_void_p).value or 0
"""Address of `rd_kafka_header_get_all`."""
RELEASE: Final = ctypes.cast(_message_destroy, c_void_p).value or 0
"""Address of `rd_kafka_message_destroy`."""


class Reader:
    """A consumer that is told its partitions and offsets. For one thread.

    Args:
        settings: librdkafka's, with a `group.id`; `oauth_cb` as confluent-kafka takes it.
        on_error: told what goes wrong with the connection, while `some` waits.

    Raises:
        KafkaException: a setting is not taken.
    """

    def __init__(self, settings: Mapping[str, Any], on_error: Callable[[KafkaError], None]) -> None:
        def told(_: Any, code: int, reason: bytes | None, __: Any) -> None:
            on_error(KafkaError(code, (reason or b"").decode(errors="replace")))

        self._told = _ERROR_CB(told)  # the client calls it as long as it lives
        text = ctypes.create_string_buffer(_TEXT)
        conf = _conf_new()
        _conf_set_error_cb(conf, self._told)
        self._refresh = _refreshing(settings.get("oauth_cb"))
        if self._refresh is not None:
            _conf_set_token_cb(conf, self._refresh)
            _conf_enable_sasl_queue(conf, 1)
        for name, value in settings.items():
            if name == "oauth_cb":
                continue
            said = str(value).lower() if isinstance(value, bool) else str(value)
            if _conf_set(conf, name.encode(), said.encode(), text, _TEXT) != 0:
                _conf_destroy(conf)
                raise _refused(text)
        self._client = _new(_CONSUMER, conf, text, _TEXT)
        if not self._client:
            _conf_destroy(conf)
            raise _refused(text)
        if self._refresh is not None:
            _sasl_in_background(self._client)  # nobody polls where there is nothing to read
        _poll_set_consumer(self._client)
        self._queue = _queue_get_consumer(self._client)
        self._met: set[str] = set()

    def close(self) -> None:
        """Ends the client."""
        _queue_destroy(self._queue)
        _consumer_close(self._client)
        _destroy(self._client)

    def add(self, places: Iterable[tuple[str, int, int]]) -> None:
        """Reads these partitions too: topic, partition, offset.

        Raises:
            KafkaException: the client refuses.
        """
        wanted = list(places)
        self._change(_incremental_assign, wanted)
        topics = {topic for topic, _, _ in wanted}
        if not topics <= self._met:
            self._meet()
            self._met |= topics

    def _meet(self) -> None:
        """Asks who leads the partitions: by itself the client would do so within a second."""
        found = c_void_p()
        if _metadata(self._client, 0, None, byref(found), _MEET_MS) == 0:
            _metadata_destroy(found)

    def drop(self, topic: str, partition: int) -> None:
        """Reads a partition no more.

        Raises:
            KafkaException: the client refuses.
        """
        self._change(_incremental_unassign, [(topic, partition, 0)])

    def drop_all(self) -> None:
        """Reads nothing."""
        _assign(self._client, None)

    def some(self, most: int, wait_s: float) -> npt.NDArray[np.int64]:
        """Pointers to so many messages, or to those that there are when the time is over.

        Each is to be given back: `release`.
        """
        found = np.empty(most, np.int64)
        count = _consume_batch_queue(self._queue, round(wait_s * 1000), found.ctypes.data, most)
        return found[: max(0, count)]

    def _change(self, function: Any, places: Iterable[tuple[str, int, int]]) -> None:
        wanted = _list_new(1)
        try:
            for topic, partition, offset in places:
                _list_add(wanted, topic.encode(), partition)
                _list_set_offset(wanted, topic.encode(), partition, offset)
            error = function(self._client, wanted)
        finally:
            _list_destroy(wanted)
        if error:
            code, said = _error_code(error), _error_string(error).decode(errors="replace")
            _error_destroy(error)
            raise KafkaException(KafkaError(code, said))


def _refreshing(token: Callable[[str], tuple[str, float]] | None) -> Any:
    """Return the function that the client calls for a token; None without tokens."""
    if token is None:
        return None

    def refresh(client: int, config: bytes | None, _: Any) -> None:
        text = ctypes.create_string_buffer(_TEXT)
        try:
            value, expires_s = token((config or b"").decode())
        except Exception as error:  # noqa: BLE001 - the client says it to whoever it keeps waiting
            _set_token_failure(client, f"{type(error).__name__}: {error}".encode())
            return
        # The principal is what the brokers make of the token: the client wants a word all the same.
        expires_ms = round(expires_s * 1000)
        if _set_token(client, value.encode(), expires_ms, b"lakemark", None, 0, text, _TEXT) != 0:
            _set_token_failure(client, text.value)

    return _TOKEN_CB(refresh)


def message(pointer: int) -> KafkaMessage:
    """Return the message that a pointer points to."""
    return KafkaMessage.from_address(int(pointer))


def topic_of(one: KafkaMessage) -> str:
    """A message's topic."""
    return str(_topic_name(one.rkt).decode()) if one.rkt else ""


def value_of(one: KafkaMessage) -> bytes | None:
    """A message's value; of an error its text."""
    return ctypes.string_at(one.payload, one.len) if one.payload else None


def key_of(one: KafkaMessage) -> bytes | None:
    """A message's key."""
    return ctypes.string_at(one.key, one.key_len) if one.key else None


def headers_of(one: KafkaMessage) -> list[tuple[str, bytes | None]] | None:
    """A message's headers; None if it has none."""
    found = c_void_p()
    if _message_headers(byref(one), byref(found)) != 0:
        return None
    headers: list[tuple[str, bytes | None]] = []
    name, value, size = c_char_p(), c_void_p(), c_size_t()
    while _header_get_all(found, len(headers), byref(name), byref(value), byref(size)) == 0:
        text = ctypes.string_at(value.value, size.value) if value.value else None
        headers.append(((name.value or b"").decode(errors="replace"), text))
    return headers


def error_of(one: KafkaMessage) -> KafkaError | None:
    """Return the error that a message stands for; None if it is a record."""
    if one.err == 0:
        return None
    text = value_of(one) or _err2str(one.err) or b""
    return KafkaError(one.err, text.decode(errors="replace"))


def release(pointer: int) -> None:
    """Gives a message back to the client."""
    _message_destroy(int(pointer))


def _refused(text: Any) -> KafkaException:
    return KafkaException(KafkaError(KafkaError._INVALID_ARG, text.value.decode(errors="replace")))  # noqa: SLF001
