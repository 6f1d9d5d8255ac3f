"""torchtitan: its options in releases 0.1 to 0.3, and what stands in the file or the recipe that a command names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from tuning.spec.trainers.facts import (
    Argument,
    Tokens,
    TrainerKind,
    Value,
    count,
    divisors,
    line,
    nearest_values,
)
from tuning.spec.trainers.invocation import Invocation, read
from tuning.spec.trainers.kinds.any_trainer import NUMBER
from tuning.spec.trainers.kinds.titan import config_file

_LOCAL, _WHOLE = "--training.local_batch_size", "--training.global_batch_size"
_TITAN_TP = "--parallelism.tensor_parallel_degree"
#: The data ranks, where they are not simply the rest.
_COPIES, _SHARDS = "--parallelism.data_parallel_replicate_degree", "--parallelism.data_parallel_shard_degree"
_SAVES = ("--checkpoint.enable", "--checkpoint.enable_checkpoint")
_RESHARD = "--parallelism.fsdp_reshard_after_forward"
#: Up to release 0.2; since then recomputation is chosen by a word of its own.
_RECOMPUTE = "--activation_checkpoint.mode"
#: Words such as activation-checkpoint:full: options of the whole come before them.
_PART = re.compile(r"[a-z][\w.-]*:[\w.-]+")


def _value(command: Invocation, option: str) -> Value | None:
    """As given, else as its file or recipe has it."""
    text = command.value(option)
    if text is not None:
        return read(text)
    value = config_file.settings(command).get(option.removeprefix("--"))
    return value if isinstance(value, bool | int | float | str) else None


def _number(command: Invocation, option: str) -> int | None:
    """A whole number above 0; torchtitan has -1 for what follows from others."""
    value = _value(command, option)
    return value if type(value) is int and value > 0 else None


def _option(option: str, usual: Value | None = None) -> Callable[[Invocation], Value | None]:
    def reads(command: Invocation) -> Value | None:
        value = _value(command, option)
        return usual if value is None else value

    return reads


def _option_setter(option: str) -> Callable[[Invocation, Value], Invocation]:
    return lambda command, value: _with_option(command, option, str(value))


def _with_option(command: Invocation, option: str, *value: str) -> Invocation:
    """With an option, which stands before any part that is chosen by a word of its own."""
    if value and command.has(option):
        return command.with_value(option, *value)
    words, first = command.words, len(command.launcher.words) + 1
    place = next((index for index in range(first, len(words)) if _PART.fullmatch(words[index])), len(words))
    return replace(command, words=(*words[:place], option, *value, *words[place:]))


def _titan_model_ranks(command: Invocation, values: Mapping[str, Value]) -> int:
    others = ("--parallelism.pipeline_parallel_degree", "--parallelism.context_parallel_degree")
    tensor_parallel = count(values.get("tensor_parallel", _number(command, _TITAN_TP) or 1))
    for option in others:
        tensor_parallel *= _number(command, option) or 1
    return tensor_parallel


def _titan_batch(today: Invocation, values: Mapping[str, Value]) -> str:
    ranks = _titan_model_ranks(today, values)
    if today.ranks % ranks:
        are = "ranks are" if today.ranks > 1 else "rank is"
        return f"{today.ranks} {are} no multiple of the {ranks} that hold one model"
    data = today.ranks // ranks
    copies, shards = _number(today, _COPIES) or 1, _number(today, _SHARDS)
    if data % copies or (shards and copies * shards != data):
        wording = f"{_COPIES} {copies}" + (f" x {_SHARDS} {shards}" if shards else "")
        return f"{wording} do not make {data} data ranks"
    whole, size = _number(today, _WHOLE), count(values.get("micro_batch", _number(today, _LOCAL) or 1))
    if whole and whole % (size * data):
        return f"{_WHOLE} {whole} is no multiple of {size} x {data} data ranks"
    return ""


def _titan_whole(command: Invocation) -> int | None:
    size = _number(command, _LOCAL)
    data = command.ranks // max(1, _titan_model_ranks(command, {}))
    return _number(command, _WHOLE) or (size * data or None if size else None)


def _titan_pin_batch(command: Invocation) -> Invocation:
    """Without it the global batch would follow the data ranks."""
    whole = _titan_whole(command)
    return command if whole is None else _with_option(command, _WHOLE, str(whole))


def _titan_tokens(command: Invocation) -> Tokens:
    return _titan_whole(command), _number(command, "--training.seq_len")


def _titan_for_trials(command: Invocation) -> Invocation:
    settings = config_file.settings(command)
    command = _with_option(command, "--metrics.log_freq", "1")
    for option in _SAVES:
        command = command.with_switch(option, False)
        if settings.get(option.removeprefix("--")) is True:
            section, _, name = option.partition(".")
            command = _with_option(command, f"{section}.no-{name.replace('_', '-')}")
    return command


def _recompute(command: Invocation) -> Value | None:
    has = command.has(_RECOMPUTE) or config_file.toml_file(command) is not None
    return (_value(command, _RECOMPUTE) or "selective") if has else None


TORCHTITAN = TrainerKind(
    "torchtitan",
    "torchtitan",
    knows=config_file.is_titan,
    lines=(line(rf"\bstep:\s*(?P<step>\d+)\s+loss:\s*(?P<loss>{NUMBER})\b.*\btps:"),),
    arguments=(
        Argument(
            "micro_batch",
            "larger: fuller kernels, more activations",
            _option(_LOCAL),
            _option_setter(_LOCAL),
            lambda command, cores: nearest_values(
                divisors(_titan_whole(command) or 1), _number(command, _LOCAL) or 1
            ),
            _titan_batch,
        ),
        Argument(
            "tensor_parallel",
            "splits each layer: less memory, more messages",
            _option(_TITAN_TP, 1),
            _option_setter(_TITAN_TP),
            # Without a batch that is known, another number of data ranks would be another step.
            lambda command, cores: divisors(command.ranks) if _titan_whole(command) else [],
            _titan_batch,
        ),
        Argument(
            "reshard",
            "never: weights stay gathered between forward and backward",
            _option(_RESHARD, "default"),
            _option_setter(_RESHARD),
            lambda command, cores: ["always", "default", "never"] if command.ranks > 1 else [],
        ),
        Argument(
            "recompute",
            "less memory for more computing",
            _recompute,
            _option_setter(_RECOMPUTE),
            lambda command, cores: ["none", "selective", "full"],
        ),
    ),
    pinned=_titan_pin_batch,
    for_trials=_titan_for_trials,
    tokens=_titan_tokens,
)
