"""DeepSpeed's JSON file.

Its bf16 keeps weights in bf16 beside an fp32 copy; torch_autocast keeps fp32 weights. Buckets are counted in elements
there, of 4 bytes here. Stages 2 and 3 hand gradients to their owners after every micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.config.errors import InputError
from engine.config.methods.compression_methods import COMPRESSION_METHODS, methods_by_export_name
from workbench.export.mapping import documents, learning
from workbench.export.mapping.launch import script_launch
from workbench.export.mapping.rows import Document, Format, Level, Row, Values, accumulation_of
from workbench.export.mapping.unexpressed import add_common_rows

_ZERO, _ADAM, _RISE = "zero_optimization.", "optimizer.params.", "scheduler.params."
_TP, _CP = "tensor_parallel.autotp_size", "sequence_parallel_size"
_BYTES, _MIB = 4, 2**20
#: Parameters of the optimizers and schedules that DeepSpeed has by name.
OPTIMIZERS = ("adam", "adamw", "adagrad", "lamb", "lion", "muon", "muadam", "muadamw", "musgd",
              "onebitadam", "zerooneadam", "onebitlamb")  # fmt: skip
_OPTIMIZER_KEYS = ("lr", "betas", "eps", "weight_decay", "momentum", "bias_correction", "amsgrad",
                   "torch_adam", "adam_w_mode",
                   "freeze_step", "cuda_aware", "comm_backend_name", "max_coeff", "min_coeff", "var_freeze_step",
                   "var_update_scaler", "local_step_scaler", "local_step_clipper", "coeff_beta", "factor_max",
                   "factor_min", "factor_threshold", "max_grad_norm", "ns_method", "muon_lr", "adam_lr")  # fmt: skip
#: One of torch's that DeepSpeed takes by its name; those above have names in any case.
SGD = "SGD"
_FALLS = {"WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
_SCHEDULE_KEYS = {
    "LRRangeTest": ("lr_range_test_min_lr", "lr_range_test_step_size", "lr_range_test_step_rate",
                    "lr_range_test_staircase"),
    "OneCycle": ("cycle_min_lr", "cycle_max_lr", "decay_lr_rate", "cycle_first_step_size", "cycle_second_step_size",
                 "cycle_first_stair_count", "cycle_second_stair_count", "decay_step_size", "cycle_momentum",
                 "cycle_min_mom",
                 "cycle_max_mom", "decay_mom_rate"),
    "WarmupLR": ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type"),
    "WarmupDecayLR": ("total_num_steps", "warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type"),
    "WarmupCosineLR": ("total_num_steps", "warmup_min_ratio", "warmup_num_steps", "cos_min_ratio", "warmup_type"),
}  # fmt: skip


def _stage(values: Values) -> int:
    return int(values.get("parallel.zero_stage", 0))


def _usable_degrees(values: Values) -> frozenset[str]:
    """Ulysses deals whole heads to the ranks of cp; a model that has too few for it goes without."""
    heads = (int(values[f"model.{name}"]) // int(values["parallel.tp"]) for name in ("heads", "kv_heads"))
    return frozenset({"tp", "cp"} if all(head % values["parallel.cp"] == 0 for head in heads) else {"tp"})


def _size(document: Document, key: str) -> int:
    value = document.get(key)
    return value if isinstance(value, int) and value > 0 else 1


def _degrees(document: Document, ranks: int) -> dict[str, Any]:
    tp, cp = _size(document, _TP), _size(document, _CP)
    degrees = {"parallel.tp": tp, "parallel.cp": cp, "parallel.dp": max(1, ranks // (tp * cp))}
    return degrees | ({"parallel.cp_method": "ulysses"} if cp > 1 else {})


def _batch(document: Document, ranks: int) -> dict[str, Any]:
    """Two of the three keys give the third, as there."""
    dp = _degrees(document, ranks)["parallel.dp"]
    micro, whole = document.get("train_micro_batch_size_per_gpu"), document.get("train_batch_size")
    steps = document.get("gradient_accumulation_steps")
    if micro is None and whole is not None:
        micro = max(1, whole // ((steps or 1) * dp))
    if micro is None:
        return {}
    return {
        "batch.micro_batch": micro,
        "batch.global_batch": micro * dp * steps if steps else whole or micro * dp,
    }


def _ranks(document: Document) -> int | None:
    """Where all three keys of the batch are given, they say it."""
    keys = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
    sizes = [document[key] for key in keys if isinstance(document.get(key), int) and document[key] > 0]
    if len(sizes) < len(keys):
        return None
    micro, steps, whole = map(int, sizes)
    return max(1, whole // (micro * steps)) * _size(document, _TP) * _size(document, _CP)


def _zero(values: Values) -> Document:
    stage = _stage(values)
    return {f"{_ZERO}stage": stage} | ({f"{_ZERO}overlap_comm": True} if stage else {})


def _numbers(values: Values) -> Document:
    if values["precision"] != "bf16":
        return {}
    if values["memory.parameters"] == "bf16":
        return {"bf16.enabled": True}
    return {"torch_autocast.enabled": True, "torch_autocast.dtype": "bfloat16"}


def _read_numbers(document: Document, ranks: int) -> dict[str, Any]:
    if document.get("bf16.enabled") is True:
        return {"precision": "bf16", "memory.parameters": "bf16"}
    cast = document.get("torch_autocast.enabled") and document.get("torch_autocast.dtype") == "bfloat16"
    return {"precision": "bf16" if cast else "fp32"}


def _optimizer(values: Values) -> Document:
    """torch's own AdamW and SGD; LAMB without limits to its ratio, which this project's has not either."""
    name = values["train.optimizer"]
    common: Document = {f"{_ADAM}lr": values["train.learning_rate"]}
    if name == "sgd":
        permission = {"zero_allow_untested_optimizer": True} if _stage(values) else {}
        return {"optimizer.type": "SGD", **common, f"{_ADAM}momentum": values["train.momentum"], **_decay(values),
                **permission}  # fmt: skip
    common |= {f"{_ADAM}betas": [values["train.beta1"], values["train.beta2"]], f"{_ADAM}eps": values["train.epsilon"],
               **_decay(values)}  # fmt: skip
    if _lamb(values):
        return {"optimizer.type": "Lamb", **common, f"{_ADAM}max_coeff": 1e9, f"{_ADAM}min_coeff": 0.0}
    return {"optimizer.type": "AdamW", **common, f"{_ADAM}torch_adam": True}


def _decay(values: Values) -> Document:
    return {f"{_ADAM}weight_decay": values["train.weight_decay"]}


def _lamb(values: Values) -> bool:
    """Whether it is LAMB there, too: its norms are of what a rank has."""
    return bool(values["train.optimizer"] == "lamb" and not _stage(values))


def _read_optimizer(document: Document, ranks: int) -> dict[str, Any]:
    name = document.get("optimizer.type")
    if name is None:
        return {}
    if name == "SGD":
        return {"train.optimizer": "sgd", "train.momentum": document.get(f"{_ADAM}momentum", 0.0)}
    betas = learning.read_betas(f"{_ADAM}betas", document.get(f"{_ADAM}betas", [0.9, 0.999]))
    optimizer = {"adamw": "adamw", "lamb": "lamb"}.get(str(name).lower())
    return ({"train.optimizer": optimizer} if optimizer else {}) | betas


def _rises(values: Values) -> bool:
    """Whether a warm-up comes back: schedules that fall have one of at least a step."""
    return bool(values["train.learning_rate_warmup"] or learning.kind_of(values) == learning.CONSTANT)


def _schedule(values: Values) -> Document:
    steps, kind, rate = (
        values["train.learning_rate_warmup"],
        learning.kind_of(values),
        values["train.learning_rate"],
    )
    if kind == learning.CONSTANT and not steps:
        return {}
    rise: Document = {f"{_RISE}warmup_num_steps": max(1, steps), f"{_RISE}warmup_type": "linear"}
    if kind == "cosine":
        return {"scheduler.type": "WarmupCosineLR", f"{_RISE}total_num_steps": values["train.steps"], **rise,
                f"{_RISE}cos_min_ratio": values["train.learning_rate_floor"]}  # fmt: skip
    rise |= {f"{_RISE}warmup_min_lr": 0.0, f"{_RISE}warmup_max_lr": rate}
    if kind == learning.CONSTANT:
        return {"scheduler.type": "WarmupLR", **rise}
    return {"scheduler.type": "WarmupDecayLR", f"{_RISE}total_num_steps": values["train.steps"], **rise,
            f"{_RISE}warmup_min_lr": learning.least_rate(values)}  # fmt: skip


def _read_schedule(document: Document, ranks: int) -> dict[str, Any]:
    rise, total = document.get(f"{_RISE}warmup_num_steps"), document.get(f"{_RISE}total_num_steps")
    values = {"train.learning_rate_warmup": rise} if isinstance(rise, int) else {}
    if document.get("scheduler.type") == "WarmupLR":
        return values | {"train.learning_rate_schedule": learning.CONSTANT}
    kind = _FALLS.get(str(document.get("scheduler.type")))
    if kind is None or not isinstance(total, int):
        return values
    least, rate = document.get(f"{_RISE}warmup_min_lr"), document.get(f"{_RISE}warmup_max_lr")
    floor = learning.floor_of(least, rate) if kind == "linear" else document.get(f"{_RISE}cos_min_ratio", 0.0)
    return values | {"train.steps": total} | learning.read_fall(kind, floor, total, rise or 0)


def _elements(values: Values) -> int:
    return max(1, round(float(values["overlap.bucket_mb"]) * _MIB / _BYTES))


def _bucket(document: Document, ranks: int) -> dict[str, Any]:
    size = document.get(f"{_ZERO}reduce_bucket_size")
    if document.get(f"{_ZERO}stage") != 1 or size is None:
        return {}
    return {"overlap.bucket_mb": size * _BYTES / _MIB}


def _read_compression(document: Document, ranks: int) -> dict[str, Any]:
    named = methods_by_export_name("deepspeed").get(str(document.get("communication_data_type")))
    return {"compression.method": named} if named and not document.get(f"{_ZERO}stage") and ranks > 1 else {}


def _sent_type(values: Values) -> str | None:
    """What DeepSpeed calls the method, at the one stage at which it has one."""
    method = COMPRESSION_METHODS.get(values.get("compression.method", "none"))
    return None if method is None or _stage(values) else method.export_names.get("deepspeed")


def _read_key(key: str, setting: str) -> Any:
    return lambda document, ranks: {setting: document[key]} if document.get(key) is not None else {}


ROWS = add_common_rows((
    Row("parallel.dp", Level.EXPRESSED, ("run.sh",), "the ranks that tp and cp leave", read=_degrees),
    Row("parallel.tp", Level.EQUIVALENT, (_TP,), "AutoTP splits the linear layers of models that it knows",
        write=lambda values: {_TP: values["parallel.tp"]} if values["parallel.tp"] > 1 else {}),
    Row("parallel.cp", Level.EXPRESSED, (_CP,), "Ulysses",
        write=lambda values: {_CP: values["parallel.cp"]} if values["parallel.cp"] > 1 else {}),
    Row("parallel.cp_method", Level.EQUIVALENT, (_CP,), "always Ulysses; a ring has no key", "measure with ulysses",
        accepts=lambda values: (values["parallel.cp_method"] == "ulysses") == ("cp" in _usable_degrees(values))),
    Row("parallel.zero_stage", Level.EXPRESSED, (f"{_ZERO}stage", f"{_ZERO}overlap_comm"), write=_zero,
        read=lambda document, ranks: {"parallel.zero_stage": document.get(f"{_ZERO}stage", 0)}),
    Row("parallel.reduce_every_micro_batch", Level.EQUIVALENT, (f"{_ZERO}stage",),
        "stages 2 and 3 always do", "expect more messages than were measured where a step accumulates",
        read=lambda document, ranks: {"parallel.reduce_every_micro_batch": True}
        if document.get(f"{_ZERO}stage", 0) >= 2 and ranks > 1 else {},
        accepts=lambda values: _stage(values) < 2 or values["parallel.reduce_every_micro_batch"] is True),
    Row("batch.micro_batch", Level.EXPRESSED, ("train_micro_batch_size_per_gpu",),
        write=lambda values: {"train_micro_batch_size_per_gpu": values["batch.micro_batch"]}, read=_batch),
    Row("batch.global_batch", Level.EXPRESSED, ("gradient_accumulation_steps", "train_batch_size"),
        write=lambda values: {"gradient_accumulation_steps": accumulation_of(values),
                              "train_batch_size": values["batch.global_batch"]}),
    Row("overlap.bucket_mb", Level.EXPRESSED, (f"{_ZERO}reduce_bucket_size",), "in elements of 4 bytes, of stage 1",
        "stage 0 has buckets of a fixed size",
        write=lambda values: {f"{_ZERO}reduce_bucket_size": _elements(values)}
        if "overlap.bucket_mb" in values and _stage(values) == 1 else {},
        read=_bucket,
        accepts=lambda values: values["overlap.bucket_mb"] == 25
        or (_stage(values) == 1 and _elements(values) * _BYTES / _MIB == values["overlap.bucket_mb"])),
    Row("compression.method", Level.EQUIVALENT, ("communication_data_type",),
        f"{' and '.join(methods_by_export_name('deepspeed').values())}, of stage 0, from the first step on; "
        "ZeRO++ has int4 of its own kind for stage 3",
        "export to hf, whose gradient_hook.py is for DistributedDataParallel",
        write=lambda values: {"communication_data_type": sent} if (sent := _sent_type(values)) else {},
        read=_read_compression,
        accepts=lambda values: values["compression.method"] == "none" or _sent_type(values) is not None),
    Row("compression.weights", Level.EQUIVALENT, (f"{_ZERO}zero_quantized_weights",), "ZeRO++, of stage 3 alone",
        write=lambda values: {f"{_ZERO}zero_quantized_weights": True}
        if values.get("compression.weights") == "int8" and _stage(values) == 3 else {},
        read=lambda document, ranks: {"compression.weights": "int8"}
        if document.get(f"{_ZERO}zero_quantized_weights") and ranks > 1 else {},
        accepts=lambda values: values["compression.weights"] == "none" or _stage(values) == 3),
    Row("memory.offload", Level.EXPRESSED, (f"{_ZERO}offload_optimizer.device",),
        "optimizer, from stage 1 on; activations are moved in Python",
        write=lambda values: {f"{_ZERO}offload_optimizer.device": "cpu"}
        if values["memory.offload"] in ("optimizer", "both") and _stage(values) else {},
        read=lambda document, ranks: {"memory.offload": "optimizer"}
        if document.get(f"{_ZERO}offload_optimizer.device") == "cpu" else {},
        accepts=lambda values: values["memory.offload"] == "none"
        or (values["memory.offload"] == "optimizer" and _stage(values) > 0)),
    Row("precision", Level.EXPRESSED, ("bf16.enabled", "torch_autocast.enabled", "torch_autocast.dtype"),
        write=_numbers, read=_read_numbers),
    Row("memory.parameters", Level.EXPRESSED, ("bf16.enabled",)),
    Row("train.steps", Level.EQUIVALENT, (f"{_RISE}total_num_steps",), "of a learning rate that falls",
        "stop after as many in the training script", always=True),
    Row("train.learning_rate", Level.EXPRESSED, (f"{_ADAM}lr",), write=_optimizer,
        read=_read_key(f"{_ADAM}lr", "train.learning_rate")),
    Row("train.weight_decay", Level.EQUIVALENT, (f"{_ADAM}weight_decay",),
        "norms decay, too, unless the script groups them",
        read=_read_key(f"{_ADAM}weight_decay", "train.weight_decay")),
    Row("train.optimizer", Level.EQUIVALENT,
        ("optimizer.type", f"{_ADAM}torch_adam", f"{_ADAM}max_coeff", f"{_ADAM}min_coeff",
         "zero_allow_untested_optimizer"),
        "AdamW, SGD, and LAMB of stage 0 (on CUDA); its Muon has steps of another length", "measure with adamw",
        read=_read_optimizer, accepts=lambda values: values["train.optimizer"] in ("adamw", "sgd") or _lamb(values)),
    Row("train.beta1", Level.EXPRESSED, (f"{_ADAM}betas",)),
    Row("train.beta2", Level.EXPRESSED, (f"{_ADAM}betas",)),
    Row("train.epsilon", Level.EXPRESSED, (f"{_ADAM}eps",), read=_read_key(f"{_ADAM}eps", "train.epsilon")),
    Row("train.momentum", Level.EXPRESSED, (f"{_ADAM}momentum",), "of SGD",
        accepts=lambda values: values["train.optimizer"] == "sgd" or values["train.momentum"] == 0.9),
    Row("train.learning_rate_warmup", Level.EQUIVALENT,
        (f"{_RISE}warmup_num_steps", f"{_RISE}warmup_type", f"{_RISE}warmup_max_lr"),
        "rises over at least two steps, from 0 or the floor in the first; a schedule that falls has one",
        write=_schedule, read=_read_schedule, accepts=_rises),
    Row("train.learning_rate_schedule", Level.EQUIVALENT, ("scheduler.type",),
        "WarmupLR, WarmupDecayLR, WarmupCosineLR; a line is a step late", accepts=learning.kind_arrives),
    Row("train.learning_rate_floor", Level.EQUIVALENT, (f"{_RISE}warmup_min_lr", f"{_RISE}cos_min_ratio"),
        "of a line it is where the warm-up begins, too",
        accepts=lambda values: values["train.learning_rate_floor"] < 1
        if values["train.learning_rate_schedule"] == "cosine" else learning.whole_floor(values)),
    Row("train.clip_norm", Level.EXPRESSED, ("gradient_clipping",),
        write=lambda values: {"gradient_clipping": values["train.clip_norm"] or 0.0},
        read=lambda document, ranks: {"train.clip_norm": document.get("gradient_clipping") or None}),
))  # fmt: skip


def _read(text: str) -> Document:
    """A file in which 5e8 is a whole number, as its documentation writes it.

    Raises:
        InputError: it is not JSON, or holds no keys.
    """
    kinds = documents.read_format("deepspeed")["keys"]

    def whole(key: str, value: Any) -> Any:
        is_whole = isinstance(value, float) and value.is_integer() and kinds.get(key) == "int"
        return int(value) if is_whole else value

    return {key: whole(key, value) for key, value in documents.read_json(text).items()}


def problems(document: Document, ranks: int) -> Iterator[InputError]:
    """What is wrong, whether the parser of DeepSpeed refuses it or lets it through: no import asks that one."""
    for key in (key for key, value in document.items() if value == "auto"):
        remedy = (
            "is what Hugging Face's Trainer fills in from its own arguments; import those, or write the value"
        )
        yield InputError(key, "auto", remedy)
    yield from documents.unknown_keys("deepspeed", document)
    yield from _named_parts(document)
    yield from documents.one_of(document, f"{_ZERO}stage", 0, 1, 2, 3)
    yield from documents.positive(document, "train_batch_size", "train_micro_batch_size_per_gpu",
                                  "gradient_accumulation_steps", _CP, f"{_ZERO}reduce_bucket_size")  # fmt: skip
    yield from documents.not_negative(
        document, *(f"{_ZERO}{name}_bucket_size" for name in ("allgather", "prefetch", "stage3_prefetch"))
    )
    yield from _check_numbers(document)
    stage = document.get(f"{_ZERO}stage", 0)
    yield from _check_optimizer(document)
    name = str(document.get("optimizer.type", "")).lower()
    if name in ("onebitadam", "zerooneadam", "onebitlamb") and stage > 1:
        yield InputError(
            "optimizer.type", document["optimizer.type"], "needs ZeRO stage 0 or 1; lower the stage"
        )
    for key in ("zero_quantized_gradients", "zero_quantized_weights", "offload_param.device"):
        if document.get(f"{_ZERO}{key}") not in (None, False, "none") and stage != 3:
            yield InputError(
                f"{_ZERO}{key}", document[f"{_ZERO}{key}"], "acts with ZeRO stage 3 alone; set stage to 3"
            )
    for key in (_TP, _CP, f"{_ZERO}zero_hpz_partition_size"):
        yield from documents.divides(document, key, ranks, "the ranks")
    yield from _batch_product(document, ranks)


def _check_numbers(document: Document) -> Iterator[InputError]:
    halves = [name for name in ("fp16", "bf16", "bfloat16") if document.get(f"{name}.enabled")]
    if "fp16" in halves and len(halves) > 1:
        yield InputError(f"{halves[1]}.enabled", True, "fp16.enabled is true, too; leave one of them out")
    names = (*methods_by_export_name("deepspeed"), "fp32")
    for key in ("communication_data_type", "seq_parallel_communication_data_type"):
        value = document.get(key)
        if value is not None and str(value).lower() not in names:
            yield InputError(key, value, f"give one of {', '.join(names)}")


def _check_optimizer(document: Document) -> Iterator[InputError]:
    """It is refused as training starts."""
    is_allowed = document.get("zero_allow_untested_optimizer") is True
    if document.get("optimizer.type") == SGD and document.get(f"{_ZERO}stage", 0) and not is_allowed:
        remedy = "set zero_allow_untested_optimizer to true beside it, or the stage to 0"
        yield InputError("optimizer.type", SGD, remedy)


def _batch_product(document: Document, ranks: int) -> Iterator[InputError]:
    keys = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
    micro, steps, whole = (document.get(key) for key in keys)
    dp = _degrees(document, ranks)["parallel.dp"]
    if micro and steps and whole and ranks and micro * steps * dp != whole:
        product = f"{keys[0]} x {keys[1]} x {dp} data ranks = {micro * steps * dp}"
        remedy = f"is not {product}; give that, or another number of ranks"
        yield InputError("train_batch_size", whole, remedy)


def _named_parts(document: Document) -> Iterator[InputError]:
    name, schedule = document.get("optimizer.type"), document.get("scheduler.type")
    names = (*OPTIMIZERS, SGD)
    if name is not None and str(name).lower() not in OPTIMIZERS and name != SGD:
        yield InputError("optimizer.type", name, f"is no optimizer there; give one of {', '.join(names)}")
    if schedule is not None and schedule not in _SCHEDULE_KEYS:
        yield InputError(
            "scheduler.type", schedule, f"is no schedule there; give one of {', '.join(_SCHEDULE_KEYS)}"
        )
    for key, value in document.items():
        part = key.rpartition(".")[2]
        if key.startswith(_ADAM) and part not in _OPTIMIZER_KEYS:
            yield InputError(
                key, value, f"is no parameter of an optimizer there; known: {', '.join(_OPTIMIZER_KEYS)}"
            )
        if key.startswith(_RISE) and part not in _SCHEDULE_KEYS.get(str(schedule), ()):
            yield InputError(key, value, f"is no parameter of {schedule}")


DEEPSPEED = Format(
    name="deepspeed",
    title="DeepSpeed: its JSON file",
    file="ds_config.json",
    rows=ROWS,
    degrees=_usable_degrees,
    text=documents.json_text,
    document=_read,
    problems=problems,
    partly=("scheduler.type", "optimizer.type"),
    launch=script_launch(
        "a script that calls deepspeed.initialize", '"$1" --deepspeed_config "$HERE/ds_config.json" "${@:2}"'
    ),
    test_evidence={"parsed": "by deepspeed 0.19.8", "trained": "ZeRO 0 to 3 on two CPU ranks"},
    ranks=_ranks,
)
