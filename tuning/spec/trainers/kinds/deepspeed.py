"""DeepSpeed, whose settings stand in a JSON file; their names are those of release 0.19."""

from __future__ import annotations

from collections.abc import Mapping

from engine.config.errors import several
from tuning.spec.trainers.facts import Argument, TrainerKind, Value, count, divisors, line, nearest_values
from tuning.spec.trainers.invocation import Invocation
from tuning.spec.trainers.kinds.any_trainer import EVERY_STEP, THREADS


def zero_file(command: Invocation) -> str | None:
    """The DeepSpeed file that it names."""
    for option in ("--deepspeed_config", "--deepspeed"):
        word = command.value(option)
        if word and command.document(word) is not None:
            return word
    return None


def _inzero_file(key: str, usual: Value) -> dict[str, object]:
    def reads(command: Invocation) -> Value | None:
        word = zero_file(command)
        if word is None:
            return None
        document: object = command.document(word)
        for part in key.split("."):
            document = document.get(part) if isinstance(document, Mapping) else None
        return document if isinstance(document, bool | int | float) else usual if document is None else None

    def writes(command: Invocation, value: Value) -> Invocation:
        word = zero_file(command)
        return command if word is None else command.with_document(word, {key: value})

    return {"value_of": reads, "put": writes}


ZERO = (
    Argument(
        "zero_stage",
        "more is sharded: less memory, more messages",
        offered=lambda command, cores: [0, 1, 2, 3] if command.ranks > 1 else [],
        **_inzero_file("zero_optimization.stage", 0),  # type: ignore[arg-type]
    ),
    Argument(
        "overlap_comm",
        "gradients are sent while the backward goes",
        offered=lambda command, cores: [False, True] if command.ranks > 1 else [],
        **_inzero_file("zero_optimization.overlap_comm", False),  # type: ignore[arg-type]
    ),
    Argument(
        "reduce_bucket",
        "elements that are reduced at once",
        offered=lambda command, cores: [10**6, 10**7, 5 * 10**8] if command.ranks > 1 else [],
        **_inzero_file("zero_optimization.reduce_bucket_size", 5 * 10**8),  # type: ignore[arg-type]
    ),
)


DS_SIZE, DS_TIMES = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


def _ds_number(command: Invocation, key: str) -> int | None:
    word = zero_file(command)
    value = (command.document(word) or {}).get(key) if word else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _ds_sequences(command: Invocation) -> int:
    return count(_ds_number(command, DS_SIZE)) * count(_ds_number(command, DS_TIMES))


def _with_ds_micro_batch(command: Invocation, value: Value) -> Invocation:
    word = zero_file(command)
    if word is None:
        return command
    return command.with_document(word, {DS_SIZE: value, DS_TIMES: _ds_sequences(command) // count(value)})


def _ds_whole(today: Invocation, values: Mapping[str, Value]) -> str:
    whole, size = _ds_sequences(today), count(values["micro_batch"])
    return (
        ""
        if whole % size == 0
        else f"a step has {several(whole, 'sequences')} of each rank, no multiple of {size}"
    )


def _ds_for_trials(command: Invocation) -> Invocation:
    """It tells of every step; by default 0.19 tells of warnings alone."""
    word = zero_file(command)
    if word is None:
        return command
    return command.with_document(word, {"steps_per_print": 1, "log_level": "info"})


DEEPSPEED = TrainerKind(
    "deepspeed",
    "DeepSpeed",
    knows=lambda command: (
        command.is_deepspeed_launch
        or command.has("--deepspeed_config")
        or command.has("--deepspeed")
        or "deepspeed.initialize" in command.script
    ),
    lines=(
        line(r"\bstep=(?P<step>\d+), skipped="),
        line(r"\bglobal_step=(?P<step>\d+), RunningAvgSamplesPerSec="),
    ),
    arguments=(
        Argument(
            "micro_batch",
            "larger: fuller kernels, more activations; accumulation follows",
            lambda command: _ds_number(command, DS_SIZE),
            _with_ds_micro_batch,
            lambda command, cores: nearest_values(
                divisors(_ds_sequences(command)), count(_ds_number(command, DS_SIZE))
            ),
            _ds_whole,
        ),
        *ZERO,
        THREADS,
    ),
    for_trials=_ds_for_trials,
    settings=lambda command: (zero_file(command),),
    variables=EVERY_STEP,
)
