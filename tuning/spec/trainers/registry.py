"""Every trainer that a command is known as, one entry each; the last one knows any command."""

from __future__ import annotations

from engine.config.errors import InputError
from tuning.spec.trainers.facts import TrainerKind, line
from tuning.spec.trainers.invocation import Invocation
from tuning.spec.trainers.kinds.any_trainer import BAR, EVERY_STEP, NUMBER, THREADS
from tuning.spec.trainers.kinds.deepspeed import DEEPSPEED
from tuning.spec.trainers.kinds.hugging_face import ACCELERATE, HUGGING_FACE
from tuning.spec.trainers.kinds.megatron import MEGATRON
from tuning.spec.trainers.kinds.titan.torchtitan import TORCHTITAN

_GENERIC = TrainerKind(
    "generic",
    "a command of one's own",
    knows=lambda command: True,
    lines=(
        BAR,
        line(
            r"(?i)\b(?:global[_ ]?step|step|iter(?:ation)?)\b[\s:=#\[]*(?P<step>\d[\d,]*)(?:\s*/\s*(?P<total>\d+))?"
            rf"(?:.*?\bloss\b[\s:=]*(?P<loss>{NUMBER}))?"
            r"(?:.*?\btime\b[\s:=]*(?:(?P<ms>[\d.]+)\s*ms|(?P<seconds>[\d.]+)\s*s(?:ec)?\b))?"
        ),
    ),
    arguments=(THREADS,),
    variables=EVERY_STEP,
)

#: In the order in which a command is held against them: one that starts others with it comes later.
TRAINERS: tuple[TrainerKind, ...] = (MEGATRON, TORCHTITAN, HUGGING_FACE, DEEPSPEED, ACCELERATE, _GENERIC)


def names() -> tuple[str, ...]:
    """What a study file may call a trainer."""
    return ("auto", *(kind.name for kind in TRAINERS))


def kind_of(command: Invocation, name: str = "auto") -> TrainerKind:
    """The trainer that a command starts; the one of that name, where it is not ``auto``.

    Raises:
        InputError: there is none of that name.
    """
    for kind in TRAINERS:
        if kind.name == name or (name == "auto" and kind.knows(command)):
            return kind
    raise InputError("trainer.kind", name, f"unknown; known: {', '.join(names())}")
