"""What a user says about a source with `.option(name, value)`, checked when the query begins.

Which names there are, the sink's and Spark's among them, `quire.spark.option_names` knows.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from quire.codec.stream_metadata.names import stream_name
from quire.errors import InvalidArgument
from quire.spark.client_cache import direct_uri
from quire.spark.option_names import FILTERING, given_options, log_uri, with_tables
from quire.spark.planning import PARTITION_BYTES, Partitioning
from quire.spark.schema import chosen
from quire.stream.positions import parse_position
from quire.stream.start import Start

_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SECONDS_MAX: Final = 7 * 86_400.0
_SIZE: Final = re.compile(r"(\d{1,18})\s*([kmg]?)(?:i?b)?", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True)
class SourceOptions:
    """The options of one query."""

    uri: str
    streams: tuple[str, ...]
    """Names, and patterns with `*`."""
    start: Start
    end: Start
    fail_on_data_loss: bool
    records_max: int | None
    bytes_max: int | None
    partitioning: Partitioning
    columns: tuple[str, ...]
    takes_filters: bool
    """Whether filters of the query choose what is read. Where a frame is scanned twice, that lacks rows."""
    read_patience_s: float | None
    """None: that of the ledger client."""

    @classmethod
    def parse(cls, options: Mapping[str, str], *, is_streaming: bool = False) -> Self:
        """Raises `InvalidArgument`, with what to write instead."""
        given = given_options(options, writes=False)
        records_max, bytes_max = _limit(given, "maxRecordsPerTrigger"), _limit(given, "maxBytesPerTrigger")
        if is_streaming and "end" in given:
            raise InvalidArgument(
                "a streaming query has no end", hint="Leave the option end out, or use spark.read for a batch."
            )
        if records_max is not None and bytes_max is not None:
            raise InvalidArgument(
                "maxRecordsPerTrigger and maxBytesPerTrigger are both given", hint="Spark takes one limit: choose one."
            )
        return cls(
            uri=direct_uri(log_uri(given, writes=False)),
            streams=_streams(given),
            start=_position(given, "start", "earliest"),
            end=_position(given, "end", "latest"),
            fail_on_data_loss=_flag(given, "failOnDataLoss", default=True),
            records_max=records_max,
            bytes_max=bytes_max,
            partitioning=Partitioning(
                _limit(given, "partitionBytes") or PARTITION_BYTES, _limit(given, "minPartitions")
            ),
            columns=chosen(given.get("columns")),
            takes_filters=_flag(given, FILTERING, default=False),
            read_patience_s=_seconds(given, "readPatience"),
        )


def _streams(given: Mapping[str, str]) -> tuple[str, ...]:
    text = given.get("stream") or given.get("path")
    names = [name.strip() for name in text.split(",") if name.strip()] if text else []
    if not names:
        hint = 'Name a stream, several with commas, or a pattern: .option("stream", "orders-*").'
        raise InvalidArgument("the option stream is missing", hint=with_tables(hint, given, writes=False))
    return tuple(dict.fromkeys(name.removeprefix("/") if "*" in name else stream_name(name) for name in names))


def _position(given: Mapping[str, str], name: str, default: str) -> Start:
    try:
        return parse_position(given.get(name, default).strip())
    except InvalidArgument as error:
        raise InvalidArgument(f"option {name}: {error}", hint=error.hint, option=name) from None


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise InvalidArgument(f"option {name} is true or false, not {text!r}", option=name)
    return text == "true"


def _seconds(given: Mapping[str, str], name: str) -> float | None:
    text = given.get(name.lower())
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _SECONDS_MAX:
        raise InvalidArgument(f"option {name} is a number of seconds, not {text!r}", hint="Write 120.", option=name)
    return seconds


def _limit(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    number = int(match[1]) * _UNITS[match[2].lower()] if match else 0
    if number < 1:
        raise InvalidArgument(
            f"option {name} is a number above 0, not {text!r}", hint="Sizes may end in k, m or g.", option=name
        )
    return number
