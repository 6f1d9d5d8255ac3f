"""What a share of the exact setting's progress comes to in the end, where losses fall as a power of the steps."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tuning.analysis.learning import LEAST_LEARNED, ONE_OFF, POWER, Learning, learning
from tuning.analysis.scoring import judge
from tuning.spec.terms import LossGuard


@dataclass(frozen=True)
class Window:
    loss_before: float | None
    steps_before: int | None


def loss(steps: float, power: float) -> float:
    return 5.0 * steps**-power


def window(share: float, power: float, before: int, steps: int) -> Learning | None:
    """Of a setting of which each step is worth so much of an exact one, which learned alone until then."""
    so_far, own = share * before, share * (before + steps)
    return learning(Window(loss(so_far, power), before), loss(own, power), loss(so_far + steps, power), steps)


@pytest.mark.parametrize("share", [0.5, 0.8, 0.95, 1.0, 1.1])
@pytest.mark.parametrize("power", [0.1, 0.3, 0.76, 1.0])
@pytest.mark.parametrize("before", [100, 1000])
def test_a_few_steps_tell_the_loss_of_many(share: float, power: float, before: int) -> None:
    """The end is worked out from the whole curves, the share from an eighth of the steps so far and from less."""
    ends = loss(share * 1e6, power) / loss(1e6, power) - 1
    for steps, within in ((before // 8, 0.25), (before // 50, 0.05)):
        found = window(share, power, before, steps)
        if steps * power / before < LEAST_LEARNED:
            continue
        assert found is not None
        # Steps of the exact setting become less worth while it goes through them: the share is a little too high.
        assert found.share == pytest.approx(share, rel=0.6 * steps / (share * before), abs=1e-9)
        once = ONE_OFF / (1 - (1 + steps / (share * before)) ** -power)
        told = min(1.0, found.share + once) ** -max(POWER, power) - 1
        if share < 1 and power < POWER:
            assert found.increase > min(ends, told) - 0.01, "rather too high, but for what is there once"
        elif share < 1:
            assert found.increase == pytest.approx(min(ends, told), rel=within, abs=0.02)
        else:
            assert found.increase < 0.01


#: PowerSGD of rank 16 after 156, 319, 153 and 333 steps in the lab, int4 after 161 and 188, PowerSGD of rank 2 after 74
#: and 73: the loss before, and at the end of the window, beside the exact one. Rank 8 ended 5.1 % above the exact run
#: after 1,000 steps, int4 1.2 %; rank 2 was 20 % above it after 280.
SEEN = [
    (Window(2.04376, 156), 2.02333, 2.01978, 6, False),
    (Window(1.60315, 319), 1.60134, 1.59400, 7, False),
    (Window(2.18474, 153), 2.14876, 2.14562, 9, False),
    (Window(1.93343, 333), 1.90209, 1.89998, 8, False),
    (Window(2.15010, 161), 2.11091, 2.10544, 6, False),
    (Window(2.03154, 188), 1.98178, 1.98502, 9, False),
    (Window(2.69016, 74), 2.66973, 2.64014, 7, True),
    (Window(2.73405, 73), 2.69748, 2.67569, 8, True),
]


@pytest.mark.parametrize(("began", "own", "exact", "steps", "ruled_out"), SEEN)
def test_noise_that_is_there_once_rules_nobody_out(
    began: Window, own: float, exact: float, steps: int, ruled_out: bool
) -> None:
    learned = learning(began, own, exact, steps)
    judged = judge(own, exact, steps, LossGuard(threshold=0.05, min_steps=1), learned)
    assert judged.state == ("violated" if ruled_out else "satisfied")


def test_what_learns_nothing_has_no_end_but_a_number() -> None:
    found = learning(Window(3.0, 100), 3.1, 2.9, 10)
    assert found is not None and found.share < 0 and 1 < found.increase < 100


@pytest.mark.parametrize(
    ("before", "own", "exact", "steps"),
    [
        (Window(None, 10), 2.0, 2.0, 6),
        (Window(3.0, None), 2.0, 2.0, 6),
        (Window(3.0, 10), None, 2.0, 6),
        (Window(3.0, 10), 2.0, None, 6),
        (Window(3.0, 10), float("nan"), 2.0, 6),
        (Window(3.0, 10), 2.0, 2.0, 0),
        (Window(3.0, 10), 2.99, 3.0 * (1 - LEAST_LEARNED / 2), 6),
        (Window(3.0, 10), 2.99, 3.2, 6),
    ],
)
def test_nothing_is_told_where_nothing_is_known(
    before: Window, own: float | None, exact: float | None, steps: int
) -> None:
    assert learning(before, own, exact, steps) is None


def test_the_guard_looks_at_the_end_and_at_now() -> None:
    """Losses of PowerSGD of rank 4, its 12 steps from the 120th on, and the exact ones from the same weights."""
    guard, start = LossGuard(threshold=0.05, min_steps=1), Window(2.4031, 120)
    learned = learning(start, 2.3208, 2.2868, 12)
    now = judge(2.3208, 2.2868, 12, guard)
    assert now.state == "satisfied" and "what it loses later is not known" in now.reason
    later = judge(2.3208, 2.2868, 12, guard, learned)
    assert later.state == "violated" and "it learned 0.71 of what the baseline did" in later.reason
    # It ended 16.6 % above the exact run after 600 steps; what may be there once, and not in each step, is left out.
    assert learned is not None and 0.05 < learned.increase < 0.166 < learned.share**-POWER - 1 < 0.17
    assert later.violation == pytest.approx(learned.increase - 0.05)
    good = learning(Window(2.1732, 120), 2.0902, 2.0908, 12)  # int4
    assert judge(2.0902, 2.0908, 12, guard, good).state == "satisfied"
    worse_now = judge(2.6, 2.2868, 12, guard, good)
    assert worse_now.state == "violated" and worse_now.violation == pytest.approx(2.6 / 2.2868 - 1.05)
