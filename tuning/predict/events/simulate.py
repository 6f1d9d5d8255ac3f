"""Time, by events: plays the engine's own action lists on a model of the machine.

Places (lockstep groups of ranks) compute and send along their programs; links are shared, registers are handed out
against credits (OneFlow's actors, arXiv 2110.15032), ranks may straggle, and work may jitter. What is not modelled:
collectives do not slow down the computation beside them, and messages never split.
"""

from __future__ import annotations

from tuning.predict.events.from_config import step_of
from tuning.predict.events.machine import Machine, instant
from tuning.predict.events.player import DeadlockError, play
from tuning.predict.events.run_folder import SIMULATED, write_run
from tuning.predict.events.step import OWN, Among, Collective, Pause, Sent, Step
from tuning.predict.events.step_result import Called, MemoryLine, Phase, Simulated, memory_of
from tuning.predict.traffic.calls import Join

__all__ = [
    "OWN", "SIMULATED", "Among", "Called", "Collective", "DeadlockError", "Join", "Machine", "MemoryLine", "Pause",
    "Phase", "Sent", "Simulated", "Step", "instant", "memory_of", "simulate", "step_of", "write_run",
]  # fmt: skip


def simulate(step: Step, machine: Machine) -> Simulated:
    """Play one step; its cost grows with places x actions.

    Raises:
        DeadlockError: no rank can go on; says who waits for what.
        ValueError: a rank has no device, or a plan that no rank could follow.
    """
    return play(step, machine)
