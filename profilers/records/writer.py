"""One process, one append-only file a stream, one unbuffered write a record; what gets lost is counted."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from profilers.records.append_file import AppendFile, count_records, pack_frame
from profilers.records.codec import STREAM_OF, Encoder, Header, encode_header, fields_of, record_struct
from profilers.records.names import NameTable
from profilers.records.schema import UNDONE_EVENT, Event, FixedRecord


class RecordWriter:
    """Writes the records and events of one process ("rank-0", "launcher") into ``folder/<process>.<stream>``.

    Safe for several threads. A full or read-only disk never stops the caller: the record counts as
    ``dropped``, the file stays readable, and writing goes on as soon as it is possible again.
    """

    def __init__(self, folder: Path, process: str) -> None:
        self._folder = folder
        self._process = process
        self._lock = threading.Lock()
        self._names = NameTable(folder / f"{process}.names")
        self._streams: dict[type[FixedRecord], tuple[Encoder, AppendFile]] = {}
        self._events = AppendFile.open_frames(folder / f"{process}.events")
        self._encode_event = msgspec.msgpack.Encoder(enc_hook=repr).encode
        self._closed = False
        #: Records and events that could not be written.
        self.dropped = 0
        #: Why the last one was dropped.
        self.drop_reason: str | None = None

    def write(self, record: FixedRecord) -> None:
        """Appends one record. struct.error if a value does not have its annotated type; never an OSError."""
        with self._lock:
            try:
                encoder, file = self._streams.get(type(record)) or self._add_stream(type(record))
                file.append(encoder.encode(record))
            except OSError as error:
                self._drop(error)

    def write_many(self, records: Sequence[FixedRecord]) -> None:
        """Appends records of one class in one write: all of them or, on a full disk, none."""
        if not records:
            return
        with self._lock:
            try:
                encoder, file = self._streams.get(type(records[0])) or self._add_stream(type(records[0]))
                file.append(b"".join([encoder.encode(record) for record in records]))
            except OSError as error:
                self._drop(error, len(records))

    def write_encoded(
        self, record_class: type[FixedRecord], encode: Callable[[Mapping[str, int]], bytes], count: int
    ) -> None:
        """Appends ``count`` records of one class, as ``encode(names)`` packs them, in one write."""
        if not count:
            return
        with self._lock:
            try:
                _, file = self._streams.get(record_class) or self._add_stream(record_class)
                file.append(encode(self._names))
            except OSError as error:
                self._drop(error, count)

    def event(self, kind: str, **data: Any) -> None:
        """Appends one event with the wall-clock time; what msgpack does not know is kept as its repr."""
        frame = pack_frame(self._encode_event(Event(time.time(), kind, data)))
        with self._lock:
            try:
                self._events.append(frame)
            except OSError as error:
                self._drop(error)

    def undo(self, first: int, **facts: Any) -> None:
        """Tell that the steps from ``first`` on were undone: readers leave out their records so far."""
        with self._lock:
            streams = [STREAM_OF[record_class] for record_class in self._streams]
        written = {stream: count_records(self._folder / f"{self._process}.{stream}") for stream in streams}
        self.event(UNDONE_EVENT, step=first, records=written, **facts)

    def close(self) -> None:
        """Notes the number of dropped records, if any, as an event; later records count as dropped."""
        if self._closed:
            return
        if self.dropped:
            self.event("dropped", count=self.dropped, reason=self.drop_reason)
        with self._lock:
            self._closed = True
            for file in [self._events, self._names.file, *(file for _, file in self._streams.values())]:
                file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _drop(self, error: OSError, count: int = 1) -> None:
        self.dropped += count
        self.drop_reason = error.strerror or str(error)

    def _add_stream(self, record_class: type[FixedRecord]) -> tuple[Encoder, AppendFile]:
        stream, layout = STREAM_OF[record_class], fields_of(record_class)
        header = Header(
            stream=stream,
            process=self._process,
            pid=os.getpid(),
            host=socket.gethostname(),
            created_unix=time.time(),
            record_bytes=record_struct(layout).size,
            fields=layout,
        )
        file = AppendFile.open_records(self._folder / f"{self._process}.{stream}", encode_header(header))
        self._streams[record_class] = Encoder(record_class, self._names), file
        return self._streams[record_class]
