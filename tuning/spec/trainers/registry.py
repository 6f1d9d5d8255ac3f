"""Every trainer that a command is known as, one entry each; the last one knows any command.

Formats of log lines and names of options are those of Megatron-LM (core 0.19), torchtitan 0.3, DeepSpeed 0.19,
transformers 5.23 and accelerate 1.15.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from engine.config.errors import InputError
from tuning.spec.trainers.facts import (
    Argument,
    Tokens,
    TrainerKind,
    Value,
    divisors,
    flag,
    line,
    near,
    puts,
    switch,
)
from tuning.spec.trainers.invocation import FOLDER, Invocation

_NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)"
#: A bar of tqdm without a title of its own, as trainers of Hugging Face draw it.
_BAR = line(r"^\s*\d+%\|[^|]*\|\s*(?P<step>\d+)/(?P<total>\d+) \[")
#: tqdm takes its defaults from variables of this name; else a bar is drawn ten times a second at most.
_EVERY_STEP = {"TQDM_MININTERVAL": "0", "TQDM_MINITERS": "1"}


# --- of any trainer on processor cores

_THREADS = "OMP_NUM_THREADS"


def _threads(command: Invocation) -> int | None:
    """torchrun gives ranks one thread each where nobody said how many."""
    given = command.variables.get(_THREADS) or os.environ.get(_THREADS, "")
    return int(given) if given.isdigit() and int(given) else 1 if command.ranks > 1 else None


def _with_threads(command: Invocation, value: Value) -> Invocation:
    return replace(command, variables=dict(command.variables) | {_THREADS: str(value)})


def _offered_threads(command: Invocation, cores: int) -> list[int]:
    return [2**power for power in range(max(1, cores // command.ranks).bit_length())]


_OMP = Argument(
    "omp_threads",
    "threads of a rank on processor cores",
    _threads,
    _with_threads,
    _offered_threads,
    given_to="launcher",
)


# --- Megatron-LM


def _megatron_batch(today: Invocation, values: Mapping[str, Value]) -> str:
    whole = today.number("--global-batch-size")
    size = int(values.get("micro_batch", today.number("--micro-batch-size") or 1))
    data = today.ranks // _megatron_model_ranks(today, values)
    if whole and data and whole % (size * data):
        return f"--global-batch-size {whole} is no multiple of {size} x {data} data ranks"
    return ""


def _megatron_model_ranks(today: Invocation, values: Mapping[str, Value]) -> int:
    tp = int(values.get("tensor_parallel", today.number(_TP) or 1))
    pp = int(values.get("pipeline_parallel", today.number(_PP) or 1))
    return tp * pp * (today.number("--context-parallel-size") or 1)


def _megatron_world(today: Invocation, values: Mapping[str, Value]) -> str:
    ranks = _megatron_model_ranks(today, values)
    if today.ranks % ranks:
        return f"{today.ranks} ranks are no multiple of the {ranks} that hold one model"
    for option, name in (("--num-attention-heads", "tensor_parallel"), ("--num-layers", "pipeline_parallel")):
        whole, degree = today.number(option), int(values.get(name, 1))
        if whole and whole % degree:
            return f"{option} {whole} is no multiple of {degree}"
    return ""


def _needs_tensor_parallel(today: Invocation, values: Mapping[str, Value]) -> str:
    tp = int(values.get("tensor_parallel", today.number(_TP) or 1))
    return "sequence parallelism needs tensor parallelism" if values["sequence_parallel"] and tp == 1 else ""


def _needs_distributed_optimizer(today: Invocation, values: Mapping[str, Value]) -> str:
    has = values.get("distributed_optimizer", today.has("--use-distributed-optimizer"))
    overlaps = values.get("overlap_grad_reduce", today.has("--overlap-grad-reduce"))
    if values["overlap_param_gather"] and not (has and overlaps):
        return "--overlap-param-gather needs --use-distributed-optimizer and --overlap-grad-reduce"
    return ""


def _megatron_recompute(command: Invocation) -> Value:
    return command.value("--recompute-granularity") or "none"


def _with_megatron_recompute(command: Invocation, value: Value) -> Invocation:
    """Full recomputation asks for a method, which selective recomputation refuses."""
    plain = command.without("--recompute-granularity").without("--recompute-method")
    plain = plain.without("--recompute-num-layers")
    if value == "none":
        return plain
    chosen = plain.with_value("--recompute-granularity", value)
    if value != "full":
        return chosen
    return chosen.with_value("--recompute-method", "uniform").with_value("--recompute-num-layers", 1)


def _megatron_tokens(command: Invocation) -> Tokens:
    return command.number("--global-batch-size"), command.number("--seq-length")


_TP, _PP = "--tensor-model-parallel-size", "--pipeline-model-parallel-size"
_MEGATRON = TrainerKind(
    "megatron",
    "Megatron-LM",
    knows=lambda command: command.has(_TP) or (command.has("--micro-batch-size") and command.has("--num-layers")),
    lines=(
        line(
            r"iteration\s+(?P<step>\d+)/\s*(?P<total>\d+)\s*\|.*elapsed time per iteration \(ms\):\s*(?P<ms>[\d.]+)"
            rf"(?:.*?\blm loss:\s*(?P<loss>{_NUMBER}))?"
        ),
    ),
    arguments=(
        Argument(
            "micro_batch",
            "larger: fuller kernels, more activations",
            flag("--micro-batch-size", 1),
            puts("--micro-batch-size"),
            lambda command, cores: near(
                divisors(command.number("--global-batch-size") or 1), command.number("--micro-batch-size") or 1
            ),
            _megatron_batch,
        ),
        Argument(
            "tensor_parallel",
            "splits each layer: less memory, more messages",
            flag(_TP, 1),
            puts(_TP),
            lambda command, cores: divisors(command.ranks),
            _megatron_world,
        ),
        Argument(
            "pipeline_parallel",
            "splits the layers: less memory, idle stages",
            flag(_PP, 1),
            puts(_PP),
            lambda command, cores: divisors(command.ranks),
            _megatron_world,
        ),
        switch(
            "sequence_parallel", "--sequence-parallel", "shares norms beside tensor parallelism",
            refuses=_needs_tensor_parallel,
        ),
        switch("distributed_optimizer", "--use-distributed-optimizer", "ZeRO 1: less memory, two collectives for one"),
        switch("overlap_grad_reduce", "--overlap-grad-reduce", "gradients are sent while the backward goes"),
        switch(
            "overlap_param_gather", "--overlap-param-gather", "weights are gathered while the forward goes",
            refuses=_needs_distributed_optimizer,
        ),
        Argument(
            "recompute",
            "less memory for more computing",
            _megatron_recompute,
            _with_megatron_recompute,
            lambda command, cores: ["none", "selective", "full"],
        ),
    ),
    # Its last save would overwrite that of the training that is tuned.
    for_trials=lambda command: command.with_value("--log-interval", 1).without("--save"),
    tokens=_megatron_tokens,
)  # fmt: skip


# --- torchtitan

_LOCAL, _WHOLE = "--training.local_batch_size", "--training.global_batch_size"
_TITAN_TP = "--parallelism.tensor_parallel_degree"
_RESHARD = "--parallelism.fsdp_reshard_after_forward"


def _titan_model_ranks(command: Invocation, values: Mapping[str, Value]) -> int:
    others = ("--parallelism.pipeline_parallel_degree", "--parallelism.context_parallel_degree")
    found = int(values.get("tensor_parallel", command.number(_TITAN_TP) or 1))
    for option in others:
        found *= command.number(option) or 1
    return found


def _titan_batch(today: Invocation, values: Mapping[str, Value]) -> str:
    ranks = _titan_model_ranks(today, values)
    if today.ranks % ranks:
        return f"{today.ranks} ranks are no multiple of the {ranks} that hold one model"
    whole, size = today.number(_WHOLE), int(values.get("micro_batch", today.number(_LOCAL) or 1))
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


_TITAN = TrainerKind(
    "torchtitan",
    "torchtitan",
    knows=lambda command: any("torchtitan" in word or word.startswith("--parallelism.") for word in command.words),
    lines=(line(rf"\bstep:\s*(?P<step>\d+)\s+loss:\s*(?P<loss>{_NUMBER})\b.*\btps:"),),
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
    for_trials=lambda command: command.with_value("--metrics.log_freq", 1),
    tokens=_titan_tokens,
)


# --- Hugging Face's Trainer: options, or the same names in a JSON file

_PER_DEVICE, _ACCUMULATION = "per_device_train_batch_size", "gradient_accumulation_steps"


def _hf_value(command: Invocation, name: str, usual: Value) -> Value:
    place = command.json_argument
    if place is not None:
        found = (command.document(place) or {}).get(name)
        return usual if found is None else found
    found = flag(f"--{name}")(command)
    return found if found is not None else True if command.has(f"--{name}") else usual


def _with_hf(command: Invocation, changes: Mapping[str, Value]) -> Invocation:
    if command.json_argument is not None:
        return command.with_document(command.json_argument, changes)
    for name, value in changes.items():
        command = command.with_value(f"--{name}", value)
    return command


def _sequences(command: Invocation) -> int:
    """Of a step and rank: micro-batch times accumulation."""
    size, times = _hf_value(command, _PER_DEVICE, 8), _hf_value(command, _ACCUMULATION, 1)
    return int(size) * int(times)


def _with_micro_batch(command: Invocation, value: Value) -> Invocation:
    """Accumulation follows, so that a step keeps its sequences."""
    return _with_hf(command, {_PER_DEVICE: value, _ACCUMULATION: _sequences(command) // int(value)})


def _whole_accumulation(today: Invocation, values: Mapping[str, Value]) -> str:
    whole, size = _sequences(today), int(values["micro_batch"])
    return "" if whole % size == 0 else f"a step has {whole} sequences of each rank, no multiple of {size}"


def _hf_tokens(command: Invocation) -> Tokens:
    lengths = (command.number(option) for option in ("--block_size", "--max_seq_length", "--max_length"))
    return _sequences(command) * command.ranks, next((one for one in lengths if one), None)


def _hf_for_trials(command: Invocation) -> Invocation:
    """What it writes goes to the trial's own folder, and nothing is saved or reported."""
    return _with_hf(
        command,
        {"output_dir": f"{FOLDER}/output", "save_strategy": "no", "report_to": "none", "disable_tqdm": False},
    )


_MICRO_BATCH = Argument(
    "micro_batch",
    "larger: fuller kernels, more activations; accumulation follows",
    lambda command: _hf_value(command, _PER_DEVICE, 8),
    _with_micro_batch,
    lambda command, cores: near(divisors(_sequences(command)), int(_hf_value(command, _PER_DEVICE, 8))),
    _whole_accumulation,
)


def _zero_file(command: Invocation) -> str | None:
    """The DeepSpeed file that it names."""
    for option in ("--deepspeed_config", "--deepspeed"):
        word = command.value(option)
        if word and command.document(word) is not None:
            return word
    return None


def _in_zero_file(key: str, usual: Value) -> dict[str, object]:
    def reads(command: Invocation) -> Value | None:
        word = _zero_file(command)
        if word is None:
            return None
        found: object = command.document(word)
        for part in key.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return found if isinstance(found, bool | int | float) else usual if found is None else None

    def writes(command: Invocation, value: Value) -> Invocation:
        word = _zero_file(command)
        return command if word is None else command.with_document(word, {key: value})

    return {"read": reads, "put": writes, "given_to": "file"}


_ZERO = (
    Argument(
        "zero_stage",
        "more is sharded: less memory, more messages",
        offered=lambda command, cores: [0, 1, 2, 3] if command.ranks > 1 else [],
        **_in_zero_file("zero_optimization.stage", 0),  # type: ignore[arg-type]
    ),
    Argument(
        "overlap_comm",
        "gradients are sent while the backward goes",
        offered=lambda command, cores: [False, True] if command.ranks > 1 else [],
        **_in_zero_file("zero_optimization.overlap_comm", False),  # type: ignore[arg-type]
    ),
    Argument(
        "reduce_bucket",
        "elements that are reduced at once",
        offered=lambda command, cores: [10**6, 10**7, 5 * 10**8] if command.ranks > 1 else [],
        **_in_zero_file("zero_optimization.reduce_bucket_size", 5 * 10**8),  # type: ignore[arg-type]
    ),
)
_HF = TrainerKind(
    "hf",
    "Hugging Face Trainer",
    knows=lambda command: "TrainingArguments" in command.script
    or (command.has(f"--{_PER_DEVICE}") and any(command.has(one) for one in _OF_HF)),
    lines=(_BAR,),
    arguments=(
        _MICRO_BATCH,
        Argument(
            "recompute",
            "less memory for more computing",
            lambda command: _hf_value(command, "gradient_checkpointing", False),
            lambda command, value: _with_hf(command, {"gradient_checkpointing": value}),
            lambda command, cores: [False, True],
        ),
        Argument(
            "ddp_bucket_mb",
            "gradients of this size are averaged at once",
            lambda command: _hf_value(command, "ddp_bucket_cap_mb", 25),
            lambda command, value: _with_hf(command, {"ddp_bucket_cap_mb": value}),
            lambda command, cores: [5, 25, 100] if command.ranks > 1 and _zero_file(command) is None else [],
        ),
        Argument(
            "data_workers",
            "processes that prepare data beside a rank",
            lambda command: _hf_value(command, "dataloader_num_workers", 0),
            lambda command, value: _with_hf(command, {"dataloader_num_workers": value}),
            lambda command, cores: [0, 2] if cores > command.ranks else [],
        ),
        *_ZERO,
        _OMP,
    ),
    for_trials=_hf_for_trials,
    variables=_EVERY_STEP,
    tokens=_hf_tokens,
)
_OF_HF = ("--save_strategy", "--logging_steps", "--eval_strategy", "--do_train", "--bf16", "--deepspeed", "--fsdp")


# --- DeepSpeed in a script of one's own

_DS_SIZE, _DS_TIMES = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


def _ds_number(command: Invocation, key: str) -> int | None:
    word = _zero_file(command)
    found = (command.document(word) or {}).get(key) if word else None
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _ds_sequences(command: Invocation) -> int:
    return (_ds_number(command, _DS_SIZE) or 1) * (_ds_number(command, _DS_TIMES) or 1)


def _with_ds_micro_batch(command: Invocation, value: Value) -> Invocation:
    word = _zero_file(command)
    if word is None:
        return command
    return command.with_document(word, {_DS_SIZE: value, _DS_TIMES: _ds_sequences(command) // int(value)})


def _ds_whole(today: Invocation, values: Mapping[str, Value]) -> str:
    whole, size = _ds_sequences(today), int(values["micro_batch"])
    return "" if whole % size == 0 else f"a step has {whole} sequences of each rank, no multiple of {size}"


def _ds_for_trials(command: Invocation) -> Invocation:
    word = _zero_file(command)
    return command if word is None else command.with_document(word, {"steps_per_print": 1})


_DEEPSPEED = TrainerKind(
    "deepspeed",
    "DeepSpeed",
    knows=lambda command: (
        command.words[0].rpartition("/")[2] == "deepspeed"
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
            lambda command: _ds_number(command, _DS_SIZE),
            _with_ds_micro_batch,
            lambda command, cores: near(divisors(_ds_sequences(command)), _ds_number(command, _DS_SIZE) or 1),
            _ds_whole,
            given_to="file",
        ),
        *_ZERO,
        _OMP,
    ),
    for_trials=_ds_for_trials,
    variables=_EVERY_STEP,
)


# --- accelerate around a loop of one's own, whose options are those of its examples


def _if_given(argument: Argument) -> Argument:
    """Only where the script has such an option today: its loop is not known."""

    def reads(command: Invocation) -> Value | None:
        both = command.has(f"--{_PER_DEVICE}") and command.has(f"--{_ACCUMULATION}")
        return argument.read(command) if both else None

    return replace(argument, read=reads)


_ACCELERATE = TrainerKind(
    "accelerate",
    "accelerate",
    knows=lambda command: "launch" in command.words
    and any(word.rpartition("/")[2] == "accelerate" for word in command.words[:3])
    or "accelerate.commands.launch" in command.words,
    lines=(_BAR, line(r"(?i)\bstep[\s:=#]+(?P<step>\d+)\b")),
    arguments=(_if_given(_MICRO_BATCH), _OMP),
    variables=_EVERY_STEP,
)


# --- any other command

_GENERIC = TrainerKind(
    "generic",
    "a command of one's own",
    knows=lambda command: True,
    lines=(
        _BAR,
        line(
            r"(?i)\b(?:global[_ ]?step|step|iter(?:ation)?)\b[\s:=#\[]*(?P<step>\d[\d,]*)(?:\s*/\s*(?P<total>\d+))?"
            rf"(?:.*?\bloss\b[\s:=]*(?P<loss>{_NUMBER}))?"
            r"(?:.*?\btime\b[\s:=]*(?:(?P<ms>[\d.]+)\s*ms|(?P<seconds>[\d.]+)\s*s(?:ec)?\b))?"
        ),
    ),
    arguments=(_OMP,),
    variables=_EVERY_STEP,
)

#: In the order in which a command is held against them: one that starts others with it comes later.
TRAINERS: tuple[TrainerKind, ...] = (_MEGATRON, _TITAN, _HF, _DEEPSPEED, _ACCELERATE, _GENERIC)


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
