"""Wire bytes by formula: shares, messages, and what is not known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from profilers.analysis.communication import communication_rows
from profilers.collectives.wire_bytes import EXCHANGE, GLOO_MESSAGE_BYTES, sent_share, wire_bytes
from profilers.records.reader import Tail
from profilers.records.schema import CommSample
from profilers.records.writer import RecordWriter
from tests.support.approximate import about
from tests.support.samples import comm_sample

STEPS = np.array([0, 1])
MEGABYTE = 2**20


def sent(operation: str, backend: str, algorithm: str | None, ranks: int, payload: int) -> float:
    found = wire_bytes(operation, backend, algorithm, ranks, np.array([payload]))
    assert found is not None
    return float(found[0])


@pytest.mark.parametrize(
    ("operation", "gloo", "nccl"),
    [
        ("all_reduce", 1.5, 1.5),
        ("reduce_scatter", 1.5, 0.75),
        ("all_gather", 0.75, 0.75),
        ("all_to_all", 0.75, 0.75),
        ("broadcast", 0.75, 0.75),
        ("reduce", 15 / 16, 0.75),
        ("send", 1.0, 1.0),
        ("recv", 0.0, 0.0),
    ],
)
def test_shares_of_four_ranks(operation: str, gloo: float, nccl: float) -> None:
    assert sent_share(operation, "gloo", None, 4) == gloo
    assert sent_share(operation, "nccl", None, 4) == nccl


def test_an_exchange_scatters_at_half_of_what_gloo_sends_and_reduces_at_more() -> None:
    assert sent_share("reduce_scatter", "gloo", EXCHANGE, 4) == 0.75
    assert sent_share("all_reduce", "gloo", EXCHANGE, 4) == 3.0
    assert sent_share("all_gather", "gloo", EXCHANGE, 4) == 0.75


def test_messages_of_gloo_are_counted() -> None:
    assert sent("all_reduce", "gloo", EXCHANGE, 4, 1000) == 3000 + 3 * GLOO_MESSAGE_BYTES
    assert sent("all_reduce", "gloo", None, 4, 1000) == 1500 + 12 * GLOO_MESSAGE_BYTES
    assert sent("all_reduce", "gloo", None, 2, 10 * MEGABYTE) == 10 * MEGABYTE + 10 * GLOO_MESSAGE_BYTES
    assert sent("barrier", "gloo", None, 5, 0) == 3 * GLOO_MESSAGE_BYTES
    assert sent("all_reduce", "nccl", None, 4, 1000) == 1500


def test_a_group_of_one_sends_nothing() -> None:
    for operation in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"):
        assert sent(operation, "gloo", None, 1, 1000) == 0


@pytest.mark.parametrize(
    ("operation", "backend", "algorithm"),
    [("all_reduce", "mpi", None), ("all_reduce", "gloo", "tree"), ("prayer", "gloo", None)],
)
def test_what_nobody_knows_is_none(operation: str, backend: str, algorithm: str | None) -> None:
    assert wire_bytes(operation, backend, algorithm, 4, np.array([1])) is None


def test_a_group_has_a_rank() -> None:
    with pytest.raises(ValueError, match="group_size is 0"):
        sent_share("all_reduce", "gloo", None, 0)


def rows(folder: Path, backend: str, *records: CommSample) -> list[float | None]:
    with RecordWriter(folder, "rank-0") as writer:
        writer.write_many(list(records))
    table = Tail(folder / "rank-0.comm").read_new()
    return [row.wire_bytes for row in communication_rows([table], STEPS, 2, backend=backend)]


def test_calls_count_by_the_way_each_of_them_went(tmp_path: Path) -> None:
    calls = [comm_sample(0, group_size=4, algorithm=EXCHANGE), comm_sample(1, group_size=4), comm_sample(9)]
    exchange, ring = 3000 + 3 * GLOO_MESSAGE_BYTES, 1500 + 12 * GLOO_MESSAGE_BYTES
    assert rows(tmp_path, "gloo", *calls) == [about((exchange + ring) / 2)]


def test_uneven_parts_count_as_told(tmp_path: Path) -> None:
    even, uneven = (
        comm_sample(step, operation="all_to_all", group_size=4, sent_bytes=told)
        for step, told in ((0, None), (1, 10))
    )
    assert rows(tmp_path, "gloo", even, uneven) == [about((750 + 10 + 6 * GLOO_MESSAGE_BYTES) / 2)]


def test_one_unknown_call_makes_its_row_unknown(tmp_path: Path) -> None:
    calls = [comm_sample(0), comm_sample(1, algorithm="tree"), comm_sample(1, axis="tp")]
    assert rows(tmp_path, "gloo", *calls) == [None, about((1000 + 4 * GLOO_MESSAGE_BYTES) / 2)]
