"""What errors do to the loss, and plans whose budget that is."""

from __future__ import annotations

import math

import pytest
import torch

from engine.compression.compressor import layer_errors
from engine.compression.plan_table import choose_values, effects_of, share_of, table_of
from engine.config.compression import Settings, candidates

INT4 = Settings("int4", 4, parameters={"bucket_values": 1024})
BITS = candidates(INT4)


def told(scale: float, seed: int, count: int = 65_536) -> tuple[list[float], float, float]:
    """A layer's squared errors, squares and magnitudes."""
    gradient = scale * torch.randn(count, generator=torch.Generator().manual_seed(seed))
    errors = layer_errors(gradient, (count,), INT4, BITS)
    return [one**2 for one in errors], float(gradient.square().sum()), float(gradient.abs().sum())


def test_layers_count_by_the_mean_of_two_shares() -> None:
    """Ten values of size 2, and a hundred of size 0.1 that AdamW moves as far."""
    loud, quiet = share_of([20.0], [1.0], 40.0, 20.0, 1), share_of([0.1], [1.0], 1.0, 10.0, 1)
    table = table_of([{"loud": loud, "quiet": quiet}])
    assert [one.moved_values for one in table.values()] == [10.0, 100.0]
    effects = [float(one[0]) for one in effects_of(list(table.values()))]
    assert effects == pytest.approx([(20 / 30 + 10 / 110) / 2 * 0.5, (10 / 30 + 100 / 110) / 2 * 0.1])
    assert [float(one.errors[0]) for one in table.values()] == pytest.approx([math.sqrt(20), math.sqrt(0.1)])


def test_at_equal_error_small_gradients_pay_and_at_equal_loss_nothing_is_left() -> None:
    """Layers that are alike but for the size of their gradients: the error sees the large ones alone."""
    rows = {
        f"{seed}": share_of(squares, [65_536 * float(bit or 0) / 8 for bit in BITS], energy, magnitude, 1)
        for seed in range(6)
        for squares, energy, magnitude in [told(10.0 ** (-seed), seed)]
    }
    by_error = choose_values([rows], INT4, 1.0, "error")
    assert by_error["layers"]["5"] == 2, "the smallest gradient has most of its squares lost"
    assert by_error["error"] <= by_error["budget"] == by_error["error_uniform"]
    assert by_error["effect"] > 2 * by_error["effect_uniform"]
    by_loss = choose_values([rows], INT4, 1.0, "loss")
    assert (by_loss["budget_of"], by_loss["layers"]) == ("loss", {}), (
        "no exchange of bits pays, and one value stays"
    )
    assert by_loss["effect"] == by_loss["effect_uniform"]
    assert by_loss["error"] == by_loss["error_uniform"]


def test_what_is_free_is_saved_within_the_budget() -> None:
    """Hardly any of a large layer's values have gradients, so that its bits cost much and say little."""
    squares, energy, magnitude = told(1.0, 0)
    rows = {"block": share_of(squares, [65_536 * float(bit or 0) / 8 for bit in BITS], energy, magnitude, 1)}
    embedding = [100 * one for one in rows["block"]["bytes"]]
    rows["embedding"] = share_of([one / 1e4 for one in squares], embedding, energy / 1e4, magnitude / 1e4, 1)
    found = choose_values([rows], INT4, 1.0, "loss")
    assert found["layers"]["embedding"] < 4 < found["layers"]["block"]
    assert found["effect"] <= found["budget"] == pytest.approx(0.9 * found["effect_uniform"])


def test_a_layer_without_gradient_costs_nothing() -> None:
    rows = {"a": share_of([0.0] * 7, [float(bit or 0) for bit in BITS], 0.0, 0.0, 1)}
    found = choose_values([rows], INT4, 1.0, "loss")
    assert found["layers"] == {"a": 2}
    assert found["effect"] == 0.0
    assert choose_values([], INT4, 1.0, "loss")["layers"] == {}


def test_an_alpha_below_one_may_send_more() -> None:
    squares, energy, magnitude = told(1.0, 0)
    rows = {"a": share_of(squares, [float(bit or 0) for bit in BITS], energy, magnitude, 1)}
    assert choose_values([rows], INT4, 0.5, "loss")["layers"] == {"a": 5}
