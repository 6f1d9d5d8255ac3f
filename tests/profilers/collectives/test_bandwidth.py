"""Bandwidths against nccl-tests' definitions and its published outputs."""

import numpy as np
import pytest

from profilers.collectives import bandwidth

# Size in bytes, time in us, algbw and busbw in GB/s, as printed by nccl-tests (issues of nccl-tests and of
# projects that quote it).
PRINTED = [
    ("all_reduce", 8, 33_554_432, 195.40, 171.72, 300.51),
    ("all_reduce", 8, 1_048_576, 27.76, 37.78, 66.11),
    ("all_reduce", 2, 65_536, 67.93, 0.96, 0.96),
    ("broadcast", 2, 33_554_432, 4691.4, 7.15, 7.15),
]


@pytest.mark.parametrize(("operation", "ranks", "size", "microseconds", "algorithm", "bus"), PRINTED)
def test_agrees_with_the_output_of_nccl_tests(
    operation: str, ranks: int, size: int, microseconds: float, algorithm: float, bus: float
) -> None:
    seconds = microseconds * 1e-6
    assert bandwidth.algorithm_bandwidth(size, seconds) == pytest.approx(algorithm * 1e9, rel=6e-3)
    assert bandwidth.bus_bandwidth(operation, size, seconds, ranks) == pytest.approx(bus * 1e9, rel=6e-3)


@pytest.mark.parametrize(
    ("operation", "of_four", "of_one"),
    [
        ("all_reduce", 1.5, 0.0),
        ("all_gather", 0.75, 0.0),
        ("reduce_scatter", 0.75, 0.0),
        ("all_to_all", 0.75, 0.0),
        ("broadcast", 1.0, 1.0),
        ("reduce", 1.0, 1.0),
        ("send", 1.0, 1.0),
        ("recv", 1.0, 1.0),
        ("barrier", None, None),
    ],
)
def test_bus_factors(operation: str, of_four: float | None, of_one: float | None) -> None:
    assert bandwidth.bus_factor(operation, 4) == of_four
    assert bandwidth.bus_factor(operation, 1) == of_one


@pytest.mark.parametrize("seconds", [None, 0.0])
def test_an_unknown_time_gives_no_bandwidth(seconds: float | None) -> None:
    assert bandwidth.algorithm_bandwidth(1000, seconds) is None
    assert bandwidth.bus_bandwidth("all_reduce", 1000, seconds, 4) is None


def test_an_operation_without_definition_has_no_bus_bandwidth() -> None:
    assert bandwidth.bus_bandwidth("barrier", 1000, 1.0, 4) is None
    assert bandwidth.bus_bytes("barrier", np.array([1000]), np.array([4])) is None


def test_a_group_has_a_rank() -> None:
    with pytest.raises(ValueError, match="group_size is 0"):
        bandwidth.bus_factor("all_reduce", 0)


def test_many_calls_at_once_agree_with_one_at_a_time() -> None:
    sizes, groups = np.array([1000, 2000, 3000, 4000]), np.array([2, 4, 4, 8])
    seconds = np.ma.MaskedArray([0.1, 0.2, 0.0, 0.4], mask=[False, False, False, True])
    moved = bandwidth.bus_bytes("all_reduce", sizes, groups)
    assert moved is not None
    many = np.ma.divide(moved, seconds)
    one = [
        bandwidth.bus_bandwidth("all_reduce", int(size), second, int(group))
        for size, second, group in zip(sizes, seconds.tolist(), groups, strict=True)
    ]
    assert many.tolist() == pytest.approx(one)
