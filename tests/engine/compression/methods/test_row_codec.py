"""What codecs write, what they leave for later, and how many bytes it takes; on one rank, without messages."""

from __future__ import annotations

import math

import pytest
import torch

from engine.compression.interface import Content, content_of, partition_of
from engine.compression.methods.row_codec import Integers, RowCodec, Rows, Signs
from engine.compression.methods.sparsify import SAMPLE, largest, sent_count
from engine.compression.randomness import RandomStreams
from engine.config.compression import Settings
from engine.config.methods.compression_methods import Value

CPU = torch.device("cpu")
CODINGS: dict[str, Rows] = {"int8": Integers(8), "int4": Integers(4), "sign": Signs(CPU)}
LENGTH = 64
COUNTS = (0, 1, 7, 8, 63, 64, 65, 129, 1_000, 70_003)


def normal(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def noise(seed: int = 0) -> torch.Tensor:
    return torch.rand(1 << 16, generator=torch.Generator().manual_seed(seed))


def coded(
    codec: RowCodec, values: torch.Tensor, uniform: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """What a message says, and what it leaves."""
    left, message = values.clone(), torch.zeros(codec.size(len(values)), dtype=torch.uint8)
    codec.encode(left, message, uniform)
    said = torch.full_like(values, math.nan)
    codec.decode(message, said)
    return said, left


@pytest.mark.parametrize("coding", CODINGS.values(), ids=CODINGS)
@pytest.mark.parametrize("count", COUNTS)
def test_what_is_said_and_what_is_left_make_the_whole(coding: Rows, count: int) -> None:
    values = normal(count)
    said, left = coded(RowCodec(coding, LENGTH), values, noise())
    torch.testing.assert_close(said + left, values, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("name", "bits"), [("int8", 8), ("int4", 4), ("sign", 1)])
def test_a_message_has_the_bytes_of_its_formula(name: str, bits: int) -> None:
    codec = RowCodec(CODINGS[name], LENGTH)
    for count in COUNTS:
        exact = 4 * math.ceil(count / LENGTH) + bits * math.ceil(count / 8)
        assert exact <= codec.size(count) < exact + 4
        assert codec.size(count) % 4 == 0
    assert codec.size(64 * LENGTH) == 64 * (4 + LENGTH * bits // 8)


@pytest.mark.parametrize("bits", [8, 4])
def test_an_error_is_below_the_scale_of_its_row(bits: int) -> None:
    values = normal(10 * LENGTH)
    scales = values.view(-1, LENGTH).abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    for uniform, share in ((noise(), 1.0), (None, 0.5)):
        _, left = coded(RowCodec(Integers(bits), LENGTH), values, uniform)
        assert (left.view(-1, LENGTH).abs() <= share * 1.0001 * scales).all()


@pytest.mark.parametrize("bits", [8, 4])
def test_stochastic_rounding_has_no_bias_and_rounding_to_the_nearest_has(bits: int) -> None:
    """A constant far below the scale: the nearest is always zero."""
    values = torch.full((LENGTH,), 0.3 / (2 ** (bits - 1) - 1))
    values[0] = 1.0
    codec = RowCodec(Integers(bits), LENGTH)
    means = torch.stack([coded(codec, values, noise(seed))[0] for seed in range(400)]).mean(0)
    assert means[1:].mean() == pytest.approx(values[1].item(), rel=0.03)
    assert coded(codec, values, None)[0][1:].abs().sum() == 0


@pytest.mark.parametrize("coding", CODINGS.values(), ids=CODINGS)
def test_zeros_stay_zeros_and_a_broken_value_is_not_hidden(coding: Rows) -> None:
    codec = RowCodec(coding, LENGTH)
    assert coded(codec, torch.zeros(100), noise())[0].abs().sum() == 0
    for broken in (math.nan, math.inf):
        values = normal(2 * LENGTH)
        values[3] = broken
        said, _ = coded(codec, values, noise())
        assert not said[:LENGTH].isfinite().all()
        assert said[LENGTH:].isfinite().all()


def test_the_largest_value_survives_any_noise() -> None:
    """Were it lifted over the last level, it would come back with the other sign."""
    almost = torch.full((1 << 16,), 1 - 2**-24)
    said, _ = coded(RowCodec(Integers(8), LENGTH), normal(100_000), almost)
    assert ((said - normal(100_000)).abs() < 0.05).all()


def test_signs_keep_the_mean_magnitude_of_a_row() -> None:
    values = normal(LENGTH + 5)
    values[7] = -0.0
    said, _ = coded(RowCodec(Signs(CPU), LENGTH), values, None)
    assert said[0].abs().item() == pytest.approx(values[:LENGTH].abs().mean().item())
    assert said[-1].abs().item() == pytest.approx(values[LENGTH:].abs().mean().item())
    assert torch.equal(said.signbit(), values.signbit())


@pytest.mark.parametrize("count", [1, 1_000, 40_000])
@pytest.mark.parametrize("total", [50_000, 4 * SAMPLE])
def test_top_k_takes_exactly_k_of_about_the_largest(count: int, total: int) -> None:
    values = normal(total)
    places = largest(values, count, torch.Generator().manual_seed(1))
    assert len(set(places.tolist())) == count
    best = values.abs().topk(count).values
    assert values[places].abs().sum() >= 0.999 * best.sum()


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_top_k_sends_k_of_equal_values_as_well(value: float) -> None:
    values = torch.full((4 * SAMPLE,), value)
    places = largest(values, 1_000, torch.Generator().manual_seed(1))
    assert len(set(places.tolist())) == 1_000


def test_draws_are_the_same_again_and_differ_by_step_rank_and_bucket() -> None:
    def drawn(seed: int = 0, rank: int = 0, step: int = 0, index: int = 0, shared: bool = False) -> float:
        streams = RandomStreams(seed, rank, lambda: step, CPU)
        return float(
            torch.rand(1, generator=streams.shared(index) if shared else streams.rank_generator(index))
        )

    assert drawn() == drawn()
    assert (
        len({drawn(), drawn(seed=1), drawn(rank=1), drawn(step=1), drawn(index=1), drawn(shared=True)}) == 6
    )
    assert drawn(rank=0, shared=True) == drawn(rank=3, shared=True)


NAMED = {"a.wq": (64, 64), "a.norm": (64,), "a.w1": (64, 128), "b.wq": (64, 64), "b.norm": (64,)}


def bucket() -> Content:
    return content_of(0, torch.zeros(sum(math.prod(shape) for shape in NAMED.values())), NAMED)


def parts_of(**settings: object) -> tuple[list[tuple[tuple[str, ...], Value]], dict[str, str]]:
    """Names and value of each span, and what is left alone."""
    found = partition_of(bucket(), Settings(**settings))  # type: ignore[arg-type]
    return [(tuple(part.name for part in span.parts), span.value) for span in found.spans], found.uncompressed


def test_neighbours_are_one_run_but_for_those_with_a_value_of_their_own() -> None:
    assert parts_of(method="topk", value=0.1) == ([(tuple(NAMED), 0.1)], {})
    spans, alone = parts_of(method="topk", value=0.1, values={"b.*": 0.2, "b.norm": None})
    assert spans == [(("a.wq", "a.norm", "a.w1"), 0.1), (("b.wq",), 0.2)]
    assert alone == {"b.norm": "left alone as asked"}
    spans, _ = parts_of(method="topk", value=0.1, values={"*": 0.1})
    assert spans == [((name,), 0.1) for name in NAMED]
    spans, _ = parts_of(method="topk", value=0.1, values={"a.norm": 0.1})
    assert spans == [(("a.wq",), 0.1), (("a.norm",), 0.1), (("a.w1", "b.wq", "b.norm"), 0.1)]


@pytest.mark.parametrize(
    ("settings", "alone", "words"),
    [
        ({"method": "topk", "value": 0.01}, {"a.norm", "b.norm"}, "less than one"),
        (
            {"method": "sign", "value": 1, "parameters": {"bucket_values": 128}},
            {"a.norm", "b.norm"},
            "share a scale",
        ),
        (
            {"method": "int8", "value": 8, "parameters": {"bucket_values": 1024}},
            {"a.norm", "b.norm"},
            "share a scale",
        ),
        ({"method": "powersgd", "value": 16}, {"a.norm", "b.norm"}, "no matrix"),
        ({"method": "powersgd", "value": 20}, {"a.wq", "b.wq", "a.norm", "b.norm"}, ""),
        ({"method": "fp16", "value": 16}, set(), ""),
        ({"method": "none"}, set(), ""),
    ],
)
def test_what_would_not_gain_is_left_alone(settings: dict[str, object], alone: set[str], words: str) -> None:
    _, found = parts_of(**settings)
    assert set(found) == alone
    assert all(words in reason for reason in found.values())


def test_every_value_is_in_one_run_or_sent_as_it_is() -> None:
    content = bucket()
    for method, value in (("none", None), ("topk", 0.01), ("powersgd", 20), ("sign", 1)):
        found = partition_of(content, Settings(method, value, parameters={"bucket_values": 1024}))
        ranges = sorted([(span.start, span.stop) for span in found.spans] + list(found.plain))
        covered = [place for start, stop in ranges for place in range(start, stop)]
        assert covered == list(range(len(content.flat)))


def test_at_least_one_value_of_a_run_is_sent() -> None:
    assert [sent_count(0.01, count) for count in (1, 100, 250)] == [1, 1, 2]
