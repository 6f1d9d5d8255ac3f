"""Training that has come apart ends as diverged, with the reason in words; healthy training never does."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.config.run_config import RunConfig
from engine.model.decoder import Decoder
from engine.rank.loop import STILL_STEPS, DivergedError, DivergenceCheck, check_validation_loss
from engine.rank.worker import train_in_group
from engine.run import run_folder
from engine.run.outcome import Ending
from engine.session import Session
from tests.support.ranks import on_ranks
from tests.support.runs import execute, small

Step = tuple[float | None, float]


def ended(steps: list[Step], of: int = 100) -> DivergedError | None:
    """What looking at losses and gradient norms, step by step, comes to."""
    watch = DivergenceCheck(of)
    for step, (loss, norm) in enumerate(steps):
        try:
            watch.check(step, loss, norm)
        except DivergedError as error:
            return error
    return None


@pytest.mark.parametrize(
    ("steps", "words", "phase"),
    [
        ([(2.0, 1.0), (math.nan, 1.0)], "step 1: the loss is not a number", "forward"),
        ([(math.inf, 1.0)], "step 0: the loss is infinite", "forward"),
        ([(2.0, math.nan)], "step 0: the norm of the gradient is not a number", "backward"),
        ([(None, math.inf)], "step 0: the norm of the gradient is infinite", "backward"),
        ([(2.0, 1.0)] * 9, "step 4: the loss is frozen: 2 to the bit for 5 steps", "forward"),
        ([(0.0, 1.0)] * 9, "step 4: the loss is exactly 0 for 5 steps", "forward"),
        (
            [(2.0 - step / 100, 0.0) for step in range(9)],
            "the norm of the gradient is exactly 0 for 5",
            "backward",
        ),
        ([(None, 0.0)] * 9, "the norm of the gradient is exactly 0", "backward"),
    ],
)
def test_a_degenerate_loss_or_gradient_is_named(steps: list[Step], words: str, phase: str) -> None:
    error = ended(steps)
    assert error is not None
    assert words in str(error)
    assert error.phase == phase


def test_a_problem_that_is_solved_may_stand_still() -> None:
    """As a saddle point in double precision: the distance falls by the same share each step, and then no further."""
    falling: list[Step] = [(0.1**step, 0.1**step) for step in range(16)]
    assert ended([*falling, *[(1e-15, 1e-15)] * 50, *[(1e-15, 0.0)] * 50, *[(0.0, 0.0)] * 50]) is None
    assert ended([*falling, (1e-15, math.nan)]) is not None
    assert ended([*falling[:6], *[(0.0, 0.0)] * 9]) is not None  # from there to nothing at once


def test_what_lasts_less_long_is_no_reason() -> None:
    still = [(2.0, 1.0)] * (STILL_STEPS - 1)
    assert ended([*still, (1.9, 1.0), *still]) is None
    assert ended([(2.0, 0.0), (1.9, 1.0)] * 9) is None
    assert ended([(None, 1.0)] * 50) is None


def test_a_shorter_run_is_judged_by_all_of_its_steps_but_never_by_one() -> None:
    assert ended([(2.0, 1.0)] * 3, of=3) is not None
    assert ended([(2.0, 0.0)], of=1) is None
    assert (
        ended([(2.0, 0.0), (1.9, 1.0), (1.8, 1.0)], of=3) is None
    )  # delayed gradients: the first step has none


def test_a_held_out_loss_has_to_be_finite() -> None:
    check_validation_loss(3, 2.5)
    with pytest.raises(DivergedError, match="step 3: the loss on held-out text is not a number"):
        check_validation_loss(3, math.nan)


#: What a planted loss is made of the real one.
PLANTED = {
    "zero": lambda loss: loss * 0.0,
    "frozen": lambda loss: loss - loss.detach() + 5.0,
    "no gradient": lambda loss: loss.detach() + loss * 0.0,
    "nan": lambda loss: loss * math.nan,
}


def planted(rank: int, config: RunConfig, folder: Path) -> dict[str, tuple[str, str]]:
    """Train with each planted loss in turn; how that ended."""
    real, found = Decoder.loss, {}
    for kind, change in PLANTED.items():

        def loss(self: Decoder, out: Tensor, targets: Tensor, change=change) -> Tensor:  # type: ignore[no-untyped-def]
            changed: Tensor = change(real(self, out, targets))
            return changed

        Decoder.loss = loss  # type: ignore[method-assign]
        try:
            train_in_group(rank, config, folder, torch.device("cpu"), None)
        except DivergedError as error:
            found[kind] = (str(error), error.phase)
    Decoder.loss = real  # type: ignore[method-assign]
    return found


def test_planted_on_real_ranks(tmp_path: Path) -> None:
    for part in (run_folder.RECORDS, run_folder.LOGS):
        (tmp_path / part).mkdir()
    config = small(parallel__dp=2, train__steps=12, train__clip_norm=None, model__layers=1)
    for found in on_ranks(2, planted, config, tmp_path):
        assert found == {
            "zero": ("step 4: the loss is exactly 0 for 5 steps", "forward"),
            "frozen": ("step 4: the loss is frozen: 5 to the bit for 5 steps", "forward"),
            "no gradient": (
                "step 4: the norm of the gradient is exactly 0 for 5 steps; nothing is learned",
                "backward",
            ),
            "nan": ("step 0: the loss is not a number", "forward"),
        }


def test_text_of_one_letter_teaches_nothing(session: Session, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a" * 200_000)
    config = small(
        parallel__dp=2, train__steps=40, train__learning_rate=0.1, data__path=str(tmp_path / "text.txt")
    )
    outcome, _ = execute(session, config)
    assert (outcome.ending, outcome.phase) == (Ending.DIVERGED, "forward")
    assert "the loss is exactly 0" in outcome.reason
    assert outcome.rank in (0, 1)


def test_a_last_update_that_breaks_the_weights_is_seen_on_held_out_text(session: Session) -> None:
    config = small(train__steps=1, train__warmup=0, train__learning_rate=1e38, model__layers=1)
    outcome, _ = execute(session, config)
    assert (outcome.ending, outcome.phase) == (Ending.DIVERGED, "validation")
