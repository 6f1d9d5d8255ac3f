"""The line of LoSA beside LoRA says what was kept, whichever way it falls; its runs are legal, its sizes as said."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import _adapted as adapted
from benchmarks.literature import adapted as system
from engine.config.validation.rules import check


def kept(losa: float, saved: int) -> dict[str, Any]:
    """As if LoSA had come to this loss, and kept so much of a hundred."""
    losses = {adapted.FULL: 1.9, adapted.AGAIN: 1.9, adapted.LORA: 2.0, adapted.LOSA: losa}
    return {
        "size": adapted.Size()._asdict(),
        "saved": {adapted.FULL: 100, adapted.LORA: 95, adapted.LOSA: saved},
        "bytes": {kind: 4 * adapted.learned(kind) for kind in adapted.KINDS},
        "tried": {f"{kind}, {rate:g}": rate for kind, rates in adapted.RATES.items() for rate in rates},
        "runs": {
            f"{kind}, seed {seed}": {"step": 0.5, "curve": [(40, 3.0, 1.0), (80, loss, 2.0)]}
            for kind, loss in losses.items()
            for seed in range(adapted.SEEDS)
        },
    }


def test_every_run_is_legal_and_both_learn_as_many_parameters() -> None:
    for kind in adapted.KINDS:
        check(adapted.config_of(kind, train__resume="a-run"))
    assert adapted.learned(adapted.LOSA) == pytest.approx(adapted.learned(adapted.LORA), rel=0.02)
    assert adapted.learned(adapted.LORA) < 0.05 * adapted.learned(adapted.FULL)


def test_what_autograd_saves_without_a_backward_through_blocks_is_a_fifth_at_most() -> None:
    """Counted on a micro-batch with values, by hooks."""
    saved = {kind: adapted.saved_bytes(kind) for kind in adapted.KINDS}
    assert saved[adapted.LOSA] <= adapted.MOST_KEPT * saved[adapted.FULL]
    assert saved[adapted.LOSA] < saved[adapted.LORA] < saved[adapted.FULL]


@pytest.mark.parametrize(
    ("losa", "saved", "verdict"),
    [
        (1.95, 10, "keeps its bars"),
        (2.05, 10, "its bar of loss beside LoRA at equal seconds"),
        (1.95, 30, "its bar of activations"),
    ],
)
def test_the_line_keeps_its_bars_only_where_bytes_and_loss_do(losa: float, saved: int, verdict: str) -> None:
    line = system.line(kept(losa, saved))
    assert verdict in line[-1]
    assert f"{losa / 2.0 - 1:+.1%} beside LoRA at equal steps" in line[4]
    assert [len(row) for row in adapted.rows(kept(losa, saved))] == [len(adapted.HEADER)] * 4


def test_after_as_many_seconds_the_slower_one_is_on_its_way() -> None:
    """Half way between the losses before and after that moment."""
    measured = kept(1.95, 10)
    for seed in range(adapted.SEEDS):
        measured["runs"][f"{adapted.LORA}, seed {seed}"]["curve"] = [(40, 3.0, 1.0), (80, 2.0, 3.0)]
    assert adapted.losses(measured, adapted.LORA, "steps") == [2.0] * adapted.SEEDS
    assert adapted.losses(measured, adapted.LORA, "seconds") == pytest.approx([2.5] * adapted.SEEDS)
    assert adapted.losses(measured, adapted.LOSA, "seconds") == [1.95] * adapted.SEEDS


def test_a_machine_that_was_busy_does_not_tell_seconds() -> None:
    measured = kept(1.95, 10)
    assert system.line(measured)[-1] == "keeps its bars"
    measured["runs"][f"{adapted.AGAIN}, seed 0"]["step"] = 1.5
    assert system.line(measured)[-1].endswith("too busy to tell seconds to a tenth")


def test_images_have_a_verdict_of_their_own() -> None:
    """Of the loss, and of how steady their seconds were."""
    images = kept(1.95, 10)
    assert system.line(kept(2.05, 10), images)[-1].endswith(
        "at equal seconds; on images keeps its bar of loss"
    )
    images["runs"][f"{adapted.AGAIN}, seed 0"]["step"] = 1.5
    line = system.line(kept(1.95, 10), images)
    assert line[-1].startswith("on text keeps its bars; on images") and line[-1].endswith("to a tenth")
    assert system.line(kept(1.95, 10), kept(2.05, 10))[-1].endswith("on images misses its bar of loss")
