"""torchtitan, whose options these are in release 0.3."""

from __future__ import annotations

from collections.abc import Mapping

from tuning.spec.trainers.any_trainer import NUMBER
from tuning.spec.trainers.facts import (
    Argument,
    Tokens,
    TrainerKind,
    Value,
    count,
    divisors,
    flag,
    line,
    near,
    puts,
)
from tuning.spec.trainers.invocation import Invocation

_LOCAL, _WHOLE = "--training.local_batch_size", "--training.global_batch_size"
_TITAN_TP = "--parallelism.tensor_parallel_degree"
_SAVES = "--checkpoint.enable"
_RESHARD = "--parallelism.fsdp_reshard_after_forward"


def _titan_model_ranks(command: Invocation, values: Mapping[str, Value]) -> int:
    others = ("--parallelism.pipeline_parallel_degree", "--parallelism.context_parallel_degree")
    found = count(values.get("tensor_parallel", command.number(_TITAN_TP) or 1))
    for option in others:
        found *= command.number(option) or 1
    return found


def _titan_batch(today: Invocation, values: Mapping[str, Value]) -> str:
    ranks = _titan_model_ranks(today, values)
    if today.ranks % ranks:
        return f"{today.ranks} ranks are no multiple of the {ranks} that hold one model"
    whole, size = today.number(_WHOLE), count(values.get("micro_batch", today.number(_LOCAL) or 1))
    data = today.ranks // ranks
    if whole and whole % (size * data):
        return f"{_WHOLE} {whole} is no multiple of {size} x {data} data ranks"
    return ""


def _titan_whole(command: Invocation) -> int | None:
    size = command.number(_LOCAL)
    data = command.ranks // max(1, _titan_model_ranks(command, {}))
    return command.number(_WHOLE) or (size * data if size else None)


def _titan_pinned(command: Invocation) -> Invocation:
    """Without it the global batch would follow the data ranks."""
    whole = _titan_whole(command)
    return command if whole is None else command.with_value(_WHOLE, whole)


def _titan_tokens(command: Invocation) -> Tokens:
    return _titan_whole(command), command.number("--training.seq_len")


TORCHTITAN = TrainerKind(
    "torchtitan",
    "torchtitan",
    knows=lambda command: any(
        "torchtitan" in word or word.startswith("--parallelism.") for word in command.words
    ),
    lines=(line(rf"\bstep:\s*(?P<step>\d+)\s+loss:\s*(?P<loss>{NUMBER})\b.*\btps:"),),
    arguments=(
        Argument(
            "micro_batch",
            "larger: fuller kernels, more activations",
            flag(_LOCAL),
            puts(_LOCAL),
            lambda command, cores: near(divisors(_titan_whole(command) or 1), command.number(_LOCAL) or 1),
            _titan_batch,
        ),
        Argument(
            "tensor_parallel",
            "splits each layer: less memory, more messages",
            flag(_TITAN_TP, 1),
            puts(_TITAN_TP),
            # Without a batch that is known, another number of data ranks would be another step.
            lambda command, cores: divisors(command.ranks) if _titan_whole(command) else [],
            _titan_batch,
        ),
        Argument(
            "reshard",
            "never: weights stay gathered between forward and backward",
            flag(_RESHARD, "default"),
            puts(_RESHARD),
            lambda command, cores: ["always", "default", "never"] if command.ranks > 1 else [],
        ),
    ),
    pinned=_titan_pinned,
    for_trials=lambda command: command.with_value("--metrics.log_freq", 1).with_switch(_SAVES, False),
    tokens=_titan_tokens,
)
