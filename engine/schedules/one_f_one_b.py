"""1F1B (PipeDream-flush, arXiv 2006.09503): a backward as soon as one can run."""

from __future__ import annotations

from engine.schedules.actions import Action, backward, forward


def one_f_one_b(stage: int, stages: int, micro_batches: int) -> list[Action]:
    """Actions of one stage; keeps at most ``stages - stage`` activations in flight."""
    warm_up = min(stages - stage - 1, micro_batches)
    actions = [forward(m) for m in range(warm_up)]
    for m in range(micro_batches - warm_up):
        actions += [forward(warm_up + m), backward(m)]
    return actions + [backward(m) for m in range(micro_batches - warm_up, micro_batches)]
