"""L-GreCo's choice against every choice there is, and what a layer loses against running the compressor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.compression.compressor import layer_errors
from engine.compression.l_greco import Layer, choose
from engine.compression.methods.row_codec import Integers, RowCodec, pack, unpack
from engine.compression.methods.sparsify import largest
from engine.compression.plan_table import choose_values, share_of
from engine.compression.randomness import RandomStreams
from engine.config.compression import Plan, Settings, candidates, settings_with
from engine.config.methods.compression_methods import Value
from engine.config.sections import Compression

CPU = torch.device("cpu")


def best_bytes(layers: Sequence[Layer], budget: float) -> float:
    """By looking at every choice; infinite if none keeps the budget."""
    fewest = math.inf
    for picked in itertools.product(*(range(len(layer.errors)) for layer in layers)):
        error, size = 0.0, 0.0
        for layer, one in zip(layers, picked, strict=True):
            error, size = error + float(layer.errors[one]), size + float(layer.bytes[one])
        if error <= budget:
            fewest = min(fewest, size)
    return fewest


def exceeds(layers: Sequence[Layer], picked: Sequence[int], budget: float) -> bool:
    return sum(float(layer.errors[one]) for layer, one in zip(layers, picked, strict=True)) > budget


@st.composite
def tables(draw: st.DrawFn) -> list[Layer]:
    """Up to 6 layers of up to 4 candidates; errors and bytes in any order, equal ones and zeros among them."""
    found = []
    for _ in range(draw(st.integers(1, 6))):
        count = draw(st.integers(1, 4))
        numbers = st.one_of(st.integers(0, 8).map(float), st.floats(0, 1e6))
        row = st.lists(numbers, min_size=count, max_size=count)
        found.append(Layer(np.array(draw(row)), np.array(draw(row)), draw(st.integers(0, count - 1))))
    return found


@settings(max_examples=300)
@given(tables(), st.sampled_from([0.5, 1.0, 1.5]))
def test_the_choice_is_the_best_of_all(layers: list[Layer], alpha: float) -> None:
    choice = choose(layers, alpha)
    usual = sum(float(layer.bytes[layer.default]) for layer in layers)
    best = best_bytes(layers, choice.budget)
    if alpha < 1 and math.isinf(best):
        assert choice.kept_default
        return
    assert choice.bytes == pytest.approx(min(best, usual) if alpha >= 1 else best, rel=1e-12)
    assert choice.bytes <= usual or alpha < 1
    assert not exceeds(layers, choice.candidates, choice.budget)


def test_a_budget_that_is_hardly_a_number_is_kept() -> None:
    layer = Layer(np.array([5e-324]), np.array([0.0]), 0)
    assert choose([layer, layer], 1.0, 1).candidates == (0, 0)


@settings(max_examples=200)
@given(tables(), st.integers(1, 60))
def test_few_buckets_cost_at_most_one_bucket_of_error_a_layer(layers: list[Layer], buckets: int) -> None:
    choice = choose(layers, 1.0, buckets)
    usual = sum(float(layer.bytes[layer.default]) for layer in layers)
    assert not exceeds(layers, choice.candidates, choice.budget)
    assert choice.bytes <= usual
    less = choice.budget * (1 - (len(layers) + 1e-9) / buckets)
    assert choice.bytes <= max(best_bytes(layers, less), 0.0) * (1 + 1e-12) or choice.bytes == usual == 0


def test_many_layers_keep_the_budget_though_errors_are_discretised() -> None:
    draw = np.random.default_rng(0)
    values = np.arange(2, 9)
    layers = [
        Layer(scale * 2.0**-values * draw.uniform(0.9, 1.1, 7), size * values, 2)
        for scale, size in zip(draw.lognormal(0, 2, 150), draw.lognormal(10, 1.5, 150), strict=True)
    ]
    choice = choose(layers)
    assert not exceeds(layers, choice.candidates, choice.budget)
    assert choice.error == pytest.approx(choice.budget, rel=0.02)
    assert choice.bytes < 0.9 * sum(float(layer.bytes[layer.default]) for layer in layers)


def test_errors_that_are_no_numbers_change_nothing() -> None:
    layers = [Layer(np.array([1.0, math.nan]), np.array([2.0, 1.0]), 0)]
    assert choose(layers).kept_default
    with pytest.raises(ValueError, match="above 0"):
        choose(layers, 0.0)
    with pytest.raises(ValueError, match="above 0"):
        choose(layers, 1.0, 0)


def test_no_layer_is_a_plan_as_well() -> None:
    assert choose([]).candidates == ()


@pytest.mark.parametrize("bits", range(2, 8))
def test_packed_codes_come_back(bits: int) -> None:
    codes = torch.randint(2**bits, (3, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(bits))
    packed, out = torch.empty(3, 5 * bits, dtype=torch.uint8), torch.empty(3, 40)
    pack(codes, bits, packed)
    unpack(packed, bits, out)
    assert torch.equal(out, codes.float())


@pytest.mark.parametrize("bits", range(2, 9))
def test_integers_of_every_width_say_all_but_what_they_leave(bits: int) -> None:
    values = torch.randn(1_000, generator=torch.Generator().manual_seed(0))
    codec = RowCodec(Integers(bits), 64)
    rest, out = values.clone(), torch.empty(1_000)
    message = torch.empty(codec.size(1_000), dtype=torch.uint8)
    codec.encode(rest, message, None)
    codec.decode(message, out)
    torch.testing.assert_close(out + rest, values)
    assert codec.size(1_000) == 4 * math.ceil((4 * 16 + bits * 125) / 4)
    scale = values.abs().max() / (2 ** (bits - 1) - 1)
    assert rest.abs().max() <= 0.501 * scale


def spread(count: int, seed: int = 0) -> torch.Tensor:
    """Values of many magnitudes, as gradients have."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, generator=generator) * torch.rand(count, generator=generator) ** 4


def test_the_error_of_top_k_is_that_of_the_compressor_and_never_less() -> None:
    gradient = spread(100_000)
    values: list[Value] = [0.001, 0.01, 0.1, 0.5, 1.0]
    told = layer_errors(gradient, (100_000,), Settings("topk", 0.01), values)
    for value, error in zip(values, told, strict=True):
        rest = gradient.clone()
        rest[largest(gradient, int(float(value or 0) * 100_000), torch.Generator().manual_seed(0))] = 0.0
        exact = float(rest.double().norm())
        assert exact * (1 - 1e-9) <= error <= exact * 1.01 + 1e-9


def test_the_error_of_top_k_is_zero_where_nothing_is_left() -> None:
    sparse = torch.zeros(1_000)
    sparse[::100] = 3.0
    assert layer_errors(sparse, (1_000,), Settings("topk", 0.01), [0.005, 0.01]) == pytest.approx(
        [math.sqrt(45), 0]
    )


@pytest.mark.parametrize("shape", [(40, 30), (3, 50, 40), (600, 500)])
def test_the_error_of_low_rank_is_what_singular_values_leave(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    rows, columns = shape[-2:]
    thin = torch.randn(*shape[:-1], 40, generator=generator) * torch.logspace(0, -3, 40)
    x = thin @ torch.randn(*shape[:-2], 40, columns, generator=generator)
    told = layer_errors(x.flatten(), shape, Settings("powersgd", 4), [2, 4, 8])
    singular = torch.linalg.svdvals(x.double()).square().reshape(-1, min(rows, columns))
    exact = [math.sqrt(float(singular[:, rank:].sum())) for rank in (2, 4, 8)]
    assert told == pytest.approx(exact, rel=0.02)
    assert all(error >= one * (1 - 1e-4) for error, one in zip(told, exact, strict=True))


@pytest.mark.parametrize("stochastic", [False, True])
def test_the_error_of_quantisers_is_that_of_the_codec(stochastic: bool) -> None:
    gradient = spread(10_000)
    settings_ = Settings("int4", 4, stochastic=stochastic, parameters={"bucket_values": 128})
    told = layer_errors(gradient, (10_000,), settings_, [2, 4, 8])
    for bits, error in zip((2, 4, 8), told, strict=True):
        rest, codec = gradient.clone(), RowCodec(Integers(bits), 128)
        noise = (
            torch.rand(1 << 16, generator=RandomStreams(0, 0, lambda: 0, CPU).rank_generator(0))
            if stochastic
            else None
        )
        codec.encode(rest, torch.empty(codec.size(10_000), dtype=torch.uint8), noise)
        assert error == pytest.approx(float(rest.norm()), rel=0.05 if stochastic else 1e-6)


def test_candidates_go_from_half_to_double() -> None:
    assert candidates(Settings("int4", 4)) == [2, 3, 4, 5, 6, 7, 8]
    assert candidates(Settings("int8", 8)) == [4, 5, 6, 7, 8]
    assert candidates(Settings("powersgd", 1)) == [1, 2]
    assert candidates(Settings("powersgd", 5)) == list(range(2, 11))
    ratios = [float(value or 0) for value in candidates(Settings("topk", 0.02))]
    assert (ratios[0], ratios[8], ratios[-1], len(ratios)) == (0.01, 0.02, pytest.approx(0.04), 17)
    assert candidates(Settings("topk", 0.75))[-1] == 1.0


def test_a_plan_fills_what_the_configuration_leaves_open() -> None:
    config = Compression(method="topk", ratio=0.1, layers={"a.*": 0.5, "b": "none"}, plan="l_greco")
    plan = Plan("topk", 0.1, {"a.weight": 0.05, "b": 0.05, "c": 0.05})
    found = settings_with(config, plan)
    assert [found.value_of(name) for name in ("a.weight", "b", "c", "d")] == [0.5, None, 0.05, 0.1]
    for other in ({"method": "randomk"}, {"ratio": 0.2}, {"plan": "none"}):
        assert settings_with(config.model_copy(update=other), plan).value_of("c") in (0.1, 0.2)


def test_ranks_with_copies_count_once_and_parts_of_a_layer_together() -> None:
    """Two tp halves of one layer on two dp ranks each, and a layer of another stage."""
    halves = [{"a": share_of([16.0, 9.0, 1.0], [1.0, 2.0, 9.0], 50.0, 20.0, 2)} for _ in range(4)]
    others = [{"b": share_of([25.0, 25.0, 0.0], [1.0, 4.0, 5.0], 50.0, 20.0, 2)} for _ in range(2)]
    told = [*halves, *others]
    found = choose_values(told, Settings("powersgd", 2), 1.0, "error")
    assert found["error_uniform"] == pytest.approx(math.sqrt(18) + 5)
    assert found["layers"] == {"a": 2, "b": 1}
