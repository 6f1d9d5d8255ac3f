"""Hugging Face's Trainer, whose options stand in the command or by the same names in a JSON file, and accelerate.

Names are those of transformers 5.23 and accelerate 1.15.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from engine.config.errors import several
from tuning.spec.trainers.facts import (
    Argument,
    Tokens,
    TrainerKind,
    Value,
    count,
    divisors,
    flag,
    line,
    nearest_values,
)
from tuning.spec.trainers.invocation import FOLDER, Invocation
from tuning.spec.trainers.kinds.any_trainer import BAR, EVERY_STEP, THREADS
from tuning.spec.trainers.kinds.deepspeed import DS_SIZE, DS_TIMES, ZERO, zero_file

#: Of the settings of accelerate's launcher: what shards instead of the Trainer's own FSDP.
_SHARDED = ("DEEPSPEED", "FSDP", "MEGATRON_LM")
PER_DEVICE, ACCUMULATION = "per_device_train_batch_size", "gradient_accumulation_steps"


def _hf_value(command: Invocation, name: str, usual: Value) -> Value:
    place = command.json_argument
    if place is not None:
        value = (command.document(place) or {}).get(name)
        return usual if value is None else value
    value = flag(f"--{name}")(command)
    return value if value is not None else True if command.has(f"--{name}") else usual


def _with_hf(command: Invocation, changes: Mapping[str, Value]) -> Invocation:
    if command.json_argument is not None:
        return command.with_document(command.json_argument, changes)
    for name, value in changes.items():
        command = command.with_value(f"--{name}", value)
    return command


def _sequences(command: Invocation) -> int:
    """Of a step and rank: micro-batch times accumulation."""
    size, times = _hf_value(command, PER_DEVICE, 8), _hf_value(command, ACCUMULATION, 1)
    return count(size) * count(times)


def _with_micro_batch(command: Invocation, value: Value) -> Invocation:
    """Accumulation follows, so that a step keeps its sequences; a DeepSpeed file has to say the same."""
    times = _sequences(command) // count(value)
    word = zero_file(command)
    document = (command.document(word) or {}) if word else {}
    batch_sizes = {
        key: new for key, new in ((DS_SIZE, value), (DS_TIMES, times)) if isinstance(document.get(key), int)
    }
    command = _with_hf(command, {PER_DEVICE: value, ACCUMULATION: times})
    return command.with_document(word, batch_sizes) if word and batch_sizes else command


def _whole_accumulation(today: Invocation, values: Mapping[str, Value]) -> str:
    whole, size = _sequences(today), count(values["micro_batch"])
    return (
        ""
        if whole % size == 0
        else f"a step has {several(whole, 'sequences')} of each rank, no multiple of {size}"
    )


def _uses_deepspeed(command: Invocation) -> bool:
    """Whether DeepSpeed shards and averages; its file may be named in the JSON file of arguments."""
    named = zero_file(command) is not None or bool(_hf_value(command, "deepspeed", ""))
    return named or _distributed_type(command) == "DEEPSPEED"


def _distributed_type(command: Invocation) -> str:
    """Who shards and averages as the settings of accelerate's launcher say; a trainer's own say nothing of it then."""
    return str(command.launch_settings.get("distributed_type") or "")


def _fsdp(command: Invocation) -> bool:
    value = _hf_value(command, "fsdp", "")
    return bool(value) and str(value).lower() != "false"


def _with_fsdp(command: Invocation, value: Value) -> Invocation:
    """By the word that releases before 5 have, too; nothing is said of it where it is off."""
    if command.json_argument is not None:
        return command.with_document(command.json_argument, {"fsdp": "full_shard" if value else ""})
    return command.with_value("--fsdp", "full_shard") if value else command.remove_option("--fsdp")


def _on_cpu(command: Invocation) -> bool:
    return str(_hf_value(command, "use_cpu", False)).lower() == "true"


def _fsdp_refusal(today: Invocation, values: Mapping[str, Value]) -> str:
    """There ranks average whole gradients, as without it (accelerate 1.15, ``state.py``)."""
    on_cpu = bool(values["fsdp"]) and _on_cpu(today)
    return "accelerate shards on GPUs alone; on CPUs (use_cpu) it leaves the sharding out" if on_cpu else ""


def _averages_itself(command: Invocation) -> bool:
    return not _uses_deepspeed(command) and _distributed_type(command) not in _SHARDED


def _offered_fsdp(command: Invocation, cores: int) -> list[bool]:
    can_shard = command.ranks > 1 and _averages_itself(command)
    return [False, True] if can_shard and not _on_cpu(command) else []


def _hf_tokens(command: Invocation) -> Tokens:
    lengths = (command.number(option) for option in ("--block_size", "--max_seq_length", "--max_length"))
    return _sequences(command) * command.ranks, next((length for length in lengths if length), None)


def _hf_for_trials(command: Invocation) -> Invocation:
    """What it writes goes to the trial's own folder, and nothing is saved or reported."""
    return _with_hf(
        command,
        {"output_dir": f"{FOLDER}/output", "save_strategy": "no", "report_to": "none", "disable_tqdm": False},
    )


MICRO_BATCH = Argument(
    "micro_batch",
    "larger: fuller kernels, more activations; accumulation follows",
    lambda command: _hf_value(command, PER_DEVICE, 8),
    _with_micro_batch,
    lambda command, cores: nearest_values(
        divisors(_sequences(command)), count(_hf_value(command, PER_DEVICE, 8))
    ),
    _whole_accumulation,
)


_OF_HF = (
    "--save_strategy",
    "--logging_steps",
    "--eval_strategy",
    "--do_train",
    "--bf16",
    "--deepspeed",
    "--fsdp",
)
HUGGING_FACE = TrainerKind(
    "hf",
    "Hugging Face Trainer",
    knows=lambda command: (
        "TrainingArguments" in command.script
        or (command.has(f"--{PER_DEVICE}") and any(command.has(option) for option in _OF_HF))
    ),
    lines=(BAR,),
    arguments=(
        MICRO_BATCH,
        Argument(
            "recompute",
            "less memory for more computing",
            lambda command: _hf_value(command, "gradient_checkpointing", False),
            lambda command, value: _with_hf(command, {"gradient_checkpointing": value}),
            lambda command, cores: [False, True],
        ),
        Argument(
            "fsdp",
            "weights, gradients and optimizer are sharded: less memory, more messages",
            _fsdp,
            _with_fsdp,
            _offered_fsdp,
            _fsdp_refusal,
        ),
        Argument(
            "ddp_bucket_mb",
            "gradients of this size are averaged at once",
            lambda command: _hf_value(command, "ddp_bucket_cap_mb", 25),
            lambda command, value: _with_hf(command, {"ddp_bucket_cap_mb": value}),
            lambda command, cores: [5, 25, 100] if command.ranks > 1 and _averages_itself(command) else [],
        ),
        Argument(
            "data_workers",
            "processes that prepare data beside a rank",
            lambda command: _hf_value(command, "dataloader_num_workers", 0),
            lambda command, value: _with_hf(command, {"dataloader_num_workers": value}),
            lambda command, cores: [0, 2] if cores > command.ranks else [],
        ),
        *ZERO,
        THREADS,
    ),
    for_trials=_hf_for_trials,
    variables=EVERY_STEP,
    tokens=_hf_tokens,
    settings=lambda command: (command.json_argument, zero_file(command)),
)


#: A loop of one's own, whose options are those of accelerate's examples.


def _if_given(argument: Argument) -> Argument:
    """Only where the script has such an option today: its loop is not known."""

    def reads(command: Invocation) -> Value | None:
        both = command.has(f"--{PER_DEVICE}") and command.has(f"--{ACCUMULATION}")
        return argument.value_of(command) if both else None

    return replace(argument, value_of=reads)


ACCELERATE = TrainerKind(
    "accelerate",
    "accelerate",
    knows=lambda command: command.by_accelerate,
    lines=(BAR, line(r"(?i)\bstep[\s:=#]+(?P<step>\d+)\b")),
    arguments=(_if_given(MICRO_BATCH), THREADS),
    variables=EVERY_STEP,
)
