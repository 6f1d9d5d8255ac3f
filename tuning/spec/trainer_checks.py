"""What a study may ask of a trainer that is not this project's, tuned as it goes or started anew for each trial."""

from __future__ import annotations

from typing import Any, Protocol

from engine.config.errors import InputError
from engine.config.run_config import RunConfig
from tuning.space.knobs import Knob
from tuning.spec.objectives import Aim
from tuning.spec.terms import Budget, Command, Live, Price, SimulatedCluster
from tuning.spec.trainers.command_input import PREFIX

#: What can be measured of a trainer that is not this project's.
_OF_STEPS = ("tokens_per_second", "step_seconds")


class StudyRequest(Protocol):
    """What is looked at of a study's file."""

    @property
    def ranks(self) -> int: ...

    @property
    def space(self) -> dict[str, Any] | None: ...

    @property
    def live(self) -> Live | None: ...

    @property
    def trainer(self) -> Command | None: ...

    @property
    def simulate(self) -> SimulatedCluster | None: ...

    @property
    def budget(self) -> Budget | None: ...

    @property
    def price(self) -> Price | None: ...

    @property
    def side_by_side(self) -> int | None: ...

    @property
    def target_loss(self) -> float | None: ...

    @property
    def config(self) -> RunConfig:
        """Its base."""

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """What it turns."""

    @property
    def aims(self) -> tuple[Aim, ...]:
        """What it aims at."""


def check_trainer(file: StudyRequest) -> None:
    """A trainer that is not this project's receives only ``trainer.*`` values and reports only step times.

    Raises:
        InputError: the first thing that it cannot do.
    """
    trainer, values = file.live.trainer if file.live else None, file.config.trainer
    if file.trainer is not None:
        _check_command(file)
        return
    if trainer is None:
        if values:
            remedy = "are values of a trainer that is not this project's; name it in live.trainer"
            raise InputError("base.trainer", ", ".join(values), remedy)
        return
    if trainer.command is None and trainer.folder is None:
        remedy = "give the command that starts the trainer, or the folder of one that somebody else starts"
        raise InputError("live.trainer", None, remedy)
    if not values:
        raise InputError("base.trainer", None, "is missing; give the values that the trainer begins with")
    if file.space is None:
        raise InputError("space", None, "is missing; give the values to try, such as trainer.NAME: [1, 2]")
    _check_steps_alone(file)


def _check_steps_alone(file: StudyRequest) -> None:
    """A trainer that is not this project's has ranks of its own, and tells of its steps."""
    if file.ranks != 1:
        raise InputError("ranks", file.ranks, "are the trainer's own here, see its command; leave it out")
    if others := [aim.name for aim in file.aims if aim.name not in _OF_STEPS]:
        remedy = f"a trainer of your own tells of its steps alone; ask for {' or '.join(_OF_STEPS)}"
        raise InputError("objective", others[0], remedy)


def _check_command(file: StudyRequest) -> None:
    """Trials of a command follow each other, and turn what stands in it."""
    assert file.trainer is not None
    _check_steps_alone(file)
    others = {
        "live": file.live, "simulate": file.simulate and file.simulate.cluster, "side_by_side": file.side_by_side,
        "budget.gpu_hours": file.budget and file.budget.gpu_hours, "price": file.price and file.price.per_gpu_hour,
        "target_loss": file.target_loss,
    }  # fmt: skip
    for key, value in others.items():
        if value is not None:
            remedy = "a command has ranks and devices of its own, and one trial runs at a time; leave it out"
            raise InputError(key, str(value), remedy)
    if any(aim.name == "tokens_per_second" for aim in file.aims) and file.config.tokens_per_step is None:
        remedy = (
            "is not known of this command; give base.data.sequence_length and base.batch.global_batch, or ask for "
            "step_seconds"
        )
        raise InputError("objective", "tokens_per_second", remedy)
    for knob in file.knobs:
        if not knob.key.startswith(PREFIX):
            raise InputError(f"space.{knob.key}", str(knob), f"is turned inside a trainer, as {PREFIX}NAME")
    steps = file.trainer.steps
    sources = [
        name for name in ("pattern", "file", "tensorboard") if steps and getattr(steps, name) is not None
    ]
    if steps is not None and len(sources) != 1:
        remedy = "says where steps are read: give one of pattern, file, tensorboard"
        raise InputError("trainer.steps", ", ".join(sources) or None, remedy)
