"""Layouts from annotations, encoding, and headers of other versions."""

import struct
from dataclasses import dataclass, fields, make_dataclass
from typing import Any

import numpy as np
import pytest

from profilers.records import codec
from profilers.records.codec import Encoder, Field, FormatError, Header
from profilers.records.schema import STREAMS, CommSample
from tests.support.samples import comm_sample, gpu_sample, step_sample

NAMES = {"all_reduce": 7, "dp": 8, "float32": 9}


def header(layout: list[Field], record_bytes: int) -> Header:
    return Header("comm", "rank-0", 12, "host", 1.5, record_bytes, layout)


def decoded(record: Any) -> np.ndarray[Any, Any]:
    layout = codec.fields_of(type(record))
    size = codec.record_struct(layout).size
    data = Encoder(type(record), NAMES).encode(record)
    assert len(data) == size
    return np.frombuffer(data, codec.record_dtype(header(layout, size)))


@pytest.mark.parametrize("record_class", STREAMS.values())
def test_every_stream_has_a_layout_in_the_order_of_its_fields(record_class: Any) -> None:
    layout = codec.fields_of(record_class)
    assert [field.name for field in layout] == [field.name for field in fields(record_class)]


def test_kinds_follow_the_annotations() -> None:
    kinds = dict(codec.fields_of(CommSample))
    assert kinds["step"] == "int64"
    assert kinds["operation"] == "name"
    assert kinds["seconds"] == "float64?"


def test_values_survive_and_none_clears_its_bit() -> None:
    record = decoded(comm_sample(step=3, bytes=2**40, seconds=None))[0]
    assert (record["step"], record["bytes"], record["operation"], record["axis"]) == (3, 2**40, 7, 8)
    absent = [field.name for field in fields(CommSample)].index("seconds")
    assert record["validity"] == 0b1_1111_1111 ^ (1 << absent)


def test_booleans_and_negative_numbers_survive() -> None:
    record = decoded(step_sample(step=-1, measured=False, loss=-2.5))[0]
    assert (record["step"], record["measured"], record["loss"]) == (-1, False, -2.5)


def test_all_readings_absent() -> None:
    assert decoded(gpu_sample())[0]["validity"] == 0b11


def test_little_endian_with_the_mask_first() -> None:
    data = Encoder(CommSample, NAMES).encode(comm_sample(step=0x0102))
    assert data[:8] == (0b1_1111_1111).to_bytes(8, "little")
    assert data[8:16] == b"\x02\x01" + bytes(6)


def test_a_value_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(struct.error):
        Encoder(CommSample, NAMES).encode(comm_sample(bytes=1.5))


def test_an_annotation_without_layout_is_refused() -> None:
    @dataclass
    class Odd:
        values: list[int]

    with pytest.raises(TypeError, match=r"list\[int\]"):
        codec.fields_of(Odd)  # type: ignore[arg-type]


def test_more_fields_than_the_mask_holds_are_refused() -> None:
    wide = make_dataclass("Wide", [(f"f{number}", int) for number in range(65)])
    with pytest.raises(TypeError, match="65 fields"):
        codec.fields_of(wide)


def test_header_round_trip_and_every_cut_of_it() -> None:
    known = header([Field("step", "int64")], 16)
    data = codec.encode_header(known)
    assert codec.decode_header(data + b"records") == (known, len(data))
    assert all(codec.decode_header(data[:cut]) is None for cut in range(len(data)))


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (b"PARQUET!" + bytes(20), "magic"),
        (codec.PREFIX.pack(codec.MAGIC, 2, 0), "format version 2"),
        (codec.PREFIX.pack(codec.MAGIC, 1, 2**31), "damaged header"),
        (codec.PREFIX.pack(codec.MAGIC, 1, 1) + b"\xc1", "damaged header"),
    ],
)
def test_what_is_no_header_is_refused(start: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        codec.decode_header(start)


def test_fields_after_an_unknown_kind_are_left_out() -> None:
    newer = header([Field("step", "int64"), Field("shape", "int64[4]"), Field("loss", "float64")], 8 + 8 + 40)
    dtype = codec.record_dtype(newer)
    assert dtype.names == ("validity", "step")
    assert dtype.itemsize == 56


@pytest.mark.parametrize(
    "damaged",
    [
        header([Field("step", "int64")], 12),
        header([Field("step", "int64"), Field("step", "int64")], 24),
    ],
)
def test_fields_that_do_not_fit_the_record_are_refused(damaged: Header) -> None:
    with pytest.raises(FormatError, match="damaged header"):
        codec.record_dtype(damaged)
