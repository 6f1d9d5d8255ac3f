"""The JSON file of Hugging Face's ``TrainingArguments``, as ``HfArgumentParser.parse_json_file`` reads it.

Adam's constants are the same there by default, and norm weights do not decay either.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.config.errors import InputError
from workbench.export.formats import hf_deepspeed, hf_fsdp
from workbench.export.mapping import documents, learning
from workbench.export.mapping.launch import script_launch
from workbench.export.mapping.rows import (
    Document,
    Format,
    Level,
    Row,
    Values,
    accumulation_of,
    convert_row,
    only,
    same,
)
from workbench.export.mapping.unexpressed import add_common_rows

_SYNC = "accelerator_config.gradient_accumulation_kwargs.sync_each_batch"
_KIND, _OF_KIND = "lr_scheduler_type", "lr_scheduler_kwargs."
#: Its schedules, and what each is here.
_KINDS = {"constant": "constant", "constant_with_warmup": "constant", "linear": "linear", "polynomial": "linear",
          "cosine": "cosine", "cosine_with_min_lr": "cosine"}  # fmt: skip
_ADAMW = ("adamw_torch", "adamw_torch_fused")
_MOMENTUM = "momentum="


def _stage(values: Values) -> int:
    return int(values.get("parallel.zero_stage", 0))


def _sharding(values: Values) -> Document:
    if not _stage(values):
        return {}
    return {
        hf_fsdp.SWITCH: True,
        hf_fsdp.VERSION: 2,
        hf_fsdp.RESHARD: _stage(values) == 3,
        hf_fsdp.POLICY: "TRANSFORMER_BASED_WRAP",
    }


def _stage_of(document: Document, ranks: int) -> dict[str, Any]:
    return {"parallel.zero_stage": hf_fsdp.stage_of(document) if document.get(hf_fsdp.SWITCH) else 0}


def _recomputing(values: Values) -> Document:
    if values["memory.recompute"] != "full":
        return {}
    return {hf_fsdp.RECOMPUTE if _stage(values) else "gradient_checkpointing": True}


def _recompute_of(document: Document, ranks: int) -> dict[str, Any]:
    keys = ["gradient_checkpointing", "activation_checkpointing"]
    keys += [hf_fsdp.RECOMPUTE] if document.get(hf_fsdp.SWITCH) else []
    return {"memory.recompute": "full" if any(document.get(key) for key in keys) else "none"}


def _batch(document: Document, ranks: int) -> dict[str, Any]:
    if not ranks:
        return {}
    sequences = document["per_device_train_batch_size"] * document["gradient_accumulation_steps"]
    return {"batch.global_batch": sequences * ranks}


def _schedule(values: Values) -> Document:
    """A line to a floor is a polynomial of power 1 there."""
    kind, floor = learning.kind_of(values), values.get("train.learning_rate_floor", 0.0)
    if kind == learning.CONSTANT:
        return {_KIND: "constant_with_warmup" if values["train.learning_rate_warmup"] else "constant"}
    if not floor:
        return {_KIND: kind}
    if kind == "cosine":
        return {_KIND: "cosine_with_min_lr", f"{_OF_KIND}min_lr_rate": floor}
    return {_KIND: "polynomial", f"{_OF_KIND}lr_end": learning.least_rate(values), f"{_OF_KIND}power": 1.0}


def _read_schedule(document: Document, ranks: int) -> dict[str, Any]:
    name, rate = str(document.get(_KIND)), document.get("learning_rate")
    if name not in _KINDS or (name == "polynomial" and document.get(f"{_OF_KIND}power", 1.0) != 1.0):
        return {}
    floor = document.get(f"{_OF_KIND}min_lr_rate") or learning.floor_of(
        document.get(f"{_OF_KIND}min_lr"), rate
    )
    if name == "polynomial":
        floor = learning.floor_of(document.get(f"{_OF_KIND}lr_end", 1e-7), rate)
    steps, rise = _steps(document, ranks).get("train.steps"), document.get("warmup_steps") or 0
    return learning.read_fall(_KINDS[name], floor, steps, int(rise)) if rise >= 1 or not rise else {}


def _optimizer(values: Values) -> Document:
    if values["train.optimizer"] == "sgd":
        return {"optim": "sgd", "optim_args": f"{_MOMENTUM}{values['train.momentum']}"}
    return {"optim": _ADAMW[0]}


def _read_optimizer(document: Document, ranks: int) -> dict[str, Any]:
    name = document.get("optim")
    if name in _ADAMW:
        return {"train.optimizer": "adamw"}
    return {"train.optimizer": "sgd", "train.momentum": _momentum(document)} if name == "sgd" else {}


def _momentum(document: Document) -> float:
    arguments = [argument.strip() for argument in str(document.get("optim_args") or "").split(",")]
    words = [argument.removeprefix(_MOMENTUM) for argument in arguments if argument.startswith(_MOMENTUM)]
    try:
        return float(words[0]) if words else 0.0
    except ValueError:
        raise InputError(
            "optim_args", document["optim_args"], "give momentum=0.9, or another number"
        ) from None


def _evaluating(values: Values) -> Document:
    interval = values["train.validate_every"]
    return {"eval_strategy": "steps", "eval_steps": interval} if interval else {"eval_strategy": "no"}


def _saving(values: Values) -> Document:
    interval = values["checkpoint.every_steps"]
    return {"save_strategy": "steps", "save_steps": interval} if interval else {"save_strategy": "no"}


def _whole(key: str, switch: str, setting: str) -> Any:
    def read(document: Document, ranks: int) -> dict[str, Any]:
        is_on = document.get(switch) == "steps"
        interval = document.get(key)
        return {setting: int(interval)} if is_on and interval is not None and interval >= 1 else {}

    return read


def _steps(document: Document, ranks: int) -> dict[str, Any]:
    steps = document.get("max_steps", -1)
    return {"train.steps": steps} if steps > 0 else {}


def _offloading(values: Values) -> Document:
    wanted = values["memory.offload"] in ("optimizer", "both") and _stage(values)
    return {hf_fsdp.OFFLOAD: True} if wanted else {}


def _offload_of(document: Document, ranks: int) -> dict[str, Any]:
    is_on = document.get(hf_fsdp.SWITCH) and document.get(hf_fsdp.OFFLOAD)
    return {"memory.offload": "optimizer"} if is_on else {}


ROWS = add_common_rows((
    Row("parallel.dp", Level.EXPRESSED, ("run.sh",), "is the number of ranks",
        read=lambda document, ranks: {"parallel.dp": ranks} if ranks else {},
        accepts=lambda values: True),
    Row("parallel.zero_stage", Level.EQUIVALENT, (hf_fsdp.SWITCH, hf_fsdp.VERSION, hf_fsdp.RESHARD,
                                                  hf_fsdp.POLICY),
        "2 and 3 are FSDP2 without and with resharding after forward; 1 becomes 2",
        "stage 1: name a file of --to deepspeed under the key deepspeed",
        write=_sharding, read=_stage_of, accepts=lambda values: _stage(values) != 1),
    Row("parallel.reduce_every_micro_batch", Level.EXPRESSED, (_SYNC,),
        write=lambda values: {_SYNC: True} if values.get("parallel.reduce_every_micro_batch") else {},
        read=lambda document, ranks: {"parallel.reduce_every_micro_batch": True}
        if document.get(_SYNC) and document.get(hf_fsdp.SWITCH) else {}),
    same("batch.micro_batch", "per_device_train_batch_size"),
    Row("batch.global_batch", Level.EXPRESSED, ("gradient_accumulation_steps",),
        write=lambda values: {"gradient_accumulation_steps": accumulation_of(values)}, read=_batch),
    Row("overlap.bucket_mb", Level.EXPRESSED, ("ddp_bucket_cap_mb",), "whole MiB, of DistributedDataParallel alone",
        write=lambda values: {"ddp_bucket_cap_mb": max(1, round(values["overlap.bucket_mb"]))}
        if "overlap.bucket_mb" in values and not _stage(values) else {},
        read=lambda document, ranks: {"overlap.bucket_mb": float(document["ddp_bucket_cap_mb"])}
        if document.get("ddp_bucket_cap_mb") else {},
        accepts=lambda values: values["overlap.bucket_mb"] == 25
        or (not _stage(values) and values["overlap.bucket_mb"] % 1 == 0)),
    Row("memory.recompute", Level.EXPRESSED, ("gradient_checkpointing", hf_fsdp.RECOMPUTE, "activation_checkpointing"),
        "whole layers; selective recomputation has no key", "selective: none or full, measured",
        write=_recomputing, read=_recompute_of, accepts=lambda values: values["memory.recompute"] != "selective"),
    Row("memory.offload", Level.EXPRESSED, (hf_fsdp.OFFLOAD,),
        "optimizer, under FSDP alone; activations have no key",
        write=_offloading, read=_offload_of,
        accepts=lambda values: values["memory.offload"] == "none"
        or (values["memory.offload"] == "optimizer" and _stage(values) > 0)),
    Row("precision", Level.EXPRESSED, ("bf16",),
        write=lambda values: {"bf16": True} if values["precision"] == "bf16" else {},
        read=lambda document, ranks: {"precision": "bf16" if document.get("bf16") else "fp32"}),
    convert_row("compile", "torch_compile", bool, bool),
    Row("device", Level.EXPRESSED, ("use_cpu",),
        "ZeRO 0 alone: beside use_cpu the Trainer shards nothing; without it a GPU is used where there is one",
        "on CPUs take ZeRO 0",
        write=lambda values: {"use_cpu": True} if values["device"] == "cpu" and not _stage(values) else {},
        read=lambda document, ranks: {"device": "cpu"} if document.get("use_cpu") else {},
        accepts=lambda values: values["device"] == "auto" or (values["device"] == "cpu" and not _stage(values))),
    Row("train.steps", Level.EXPRESSED, ("max_steps",),
        write=lambda values: {"max_steps": values["train.steps"]}, read=_steps),
    same("train.seed", "seed"),
    same("train.learning_rate", "learning_rate"),
    Row("train.learning_rate_warmup", Level.EQUIVALENT, ("warmup_steps",),
        "the rate of each step is that of the step before: the first has 0",
        write=lambda values: {"warmup_steps": values["train.learning_rate_warmup"]},
        read=lambda document, ranks: {"train.learning_rate_warmup": int(document["warmup_steps"])}
        if document["warmup_steps"] >= 1 or not document["warmup_steps"] else {}),
    Row("train.learning_rate_schedule", Level.EXPRESSED, (_KIND, f"{_OF_KIND}power"),
        "a line to a floor is polynomial, a wave to one cosine_with_min_lr", "give max_steps beside it",
        write=_schedule, read=_read_schedule, accepts=learning.kind_arrives),
    Row("train.learning_rate_floor", Level.EXPRESSED,
        (f"{_OF_KIND}min_lr_rate", f"{_OF_KIND}lr_end", f"{_OF_KIND}min_lr"), "of a line as a rate",
        accepts=lambda values: values["train.learning_rate_floor"] < 1
        if values["train.learning_rate_schedule"] == "cosine" else learning.whole_floor(values)),
    Row("train.optimizer", Level.EXPRESSED, ("optim",), "AdamW and SGD", "give Trainer another one in the script",
        write=_optimizer, read=_read_optimizer, accepts=lambda values: values["train.optimizer"] in ("adamw", "sgd")),
    same("train.beta1", "adam_beta1"),
    same("train.beta2", "adam_beta2"),
    same("train.epsilon", "adam_epsilon"),
    Row("train.momentum", Level.EXPRESSED, ("optim_args",), "of SGD",
        accepts=lambda values: values["train.optimizer"] == "sgd" or values["train.momentum"] == 0.9),
    same("train.weight_decay", "weight_decay"),
    convert_row("train.clip_norm", "max_grad_norm", lambda norm: norm or 0.0, lambda norm: norm or None),
    Row("train.validate_every", Level.EXPRESSED, ("eval_strategy", "eval_steps"), write=_evaluating,
        read=_whole("eval_steps", "eval_strategy", "train.validate_every")),
    Row("checkpoint.every_steps", Level.EXPRESSED, ("save_strategy", "save_steps"), write=_saving,
        read=_whole("save_steps", "save_strategy", "checkpoint.every_steps")),
    Row("checkpoint.keep", Level.EXPRESSED, ("save_total_limit",),
        write=lambda values: {"save_total_limit": values["checkpoint.keep"]} if "checkpoint.keep" in values else {},
        read=lambda document, ranks: {"checkpoint.keep": document["save_total_limit"]}
        if document.get("save_total_limit") else {}),
))  # fmt: skip


def problems(document: Document, ranks: int) -> Iterator[InputError]:
    """What is wrong, whether the parser of transformers refuses it or lets it through: no import asks that one."""
    yield from documents.unknown_keys("hf", document)
    yield from documents.positive(document, "per_device_train_batch_size", "gradient_accumulation_steps",
                                  "ddp_bucket_cap_mb", "save_total_limit")  # fmt: skip
    yield from hf_fsdp.problems(document)
    yield from documents.not_negative(
        document, "learning_rate", "weight_decay", "max_grad_norm", "warmup_steps"
    )
    for key, value in document.items():
        if key.split(".")[0] == "parallelism_config" and value is not None:
            remedy = (
                "is an object in Python and does nothing in a JSON file; give it to TrainingArguments there"
            )
            yield InputError(key, value, remedy)


HF = Format(
    name="hf",
    title="Hugging Face's Trainer: TrainingArguments as JSON",
    file="training_args.json",
    rows=ROWS,
    degrees=only(),
    constants={"output_dir": "out", "logging_steps": 1, "report_to": "none"},
    text=documents.json_text,
    document=hf_fsdp.read,
    problems=problems,
    partly=(_KIND, "optim", "optim_args"),
    exceeding=hf_fsdp.EXCEEDING,
    launch=script_launch("a script with Hugging Face's Trainer", '"$1" "$HERE/training_args.json" "${@:2}"'),
    deepspeed=hf_deepspeed.NAMED,
    test_evidence={"parsed": "by transformers 5.23.0", "trained": "DDP and FSDP2 on two CPU ranks"},
)
