"""The sections of a recipe of NeMo Automodel 0.7 that say ranks, steps, optimizer and learning rate, in YAML.

The rest of a recipe - model and data - is of one's own choice: the file is merged over it, the optimizer as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.config.errors import InputError
from workbench.export.mapping import documents, learning
from workbench.export.mapping.launch import Launch, torchrun_command
from workbench.export.mapping.rows import (
    Document,
    Format,
    Level,
    Row,
    Values,
    convert_row,
    only,
    same,
)
from workbench.export.mapping.unexpressed import add_common_rows

_D, _S, _PIPE = "distributed.", "step_scheduler.", "distributed.pipeline."
_O, _L, _TARGET = "optimizer.", "lr_scheduler.", "optimizer._target_"
#: Its optimizers as a recipe names them, and what each is here.
_OPTIMIZERS = {"torch.optim.AdamW": "adamw", "torch.optim.SGD": "sgd", "adamw": "adamw"}
#: A norm that is never reached: without the key it clips to 1.
_UNREACHED = 1e9
_SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B"}
_SIZES = ("tp_size", "pp_size", "cp_size", "ep_size", "dp_size", "dp_replicate_size")


def _fsdp(values: Values) -> bool:
    """Whether it is FSDP2: DistributedDataParallel knows no other degree."""
    splits = any(values.get(f"parallel.{name}", 1) > 1 for name in ("tp", "pp", "cp", "ep"))
    return splits or _zero_stage(values) > 0


def _zero_stage(values: Values) -> int:
    return int(values.get("parallel.zero_stage", 0))


def _stage(values: Values) -> int:
    return max(2, _zero_stage(values)) if _fsdp(values) else 0


def _strategy(values: Values) -> Document:
    if not _fsdp(values):
        return {f"{_D}strategy": "ddp"}
    return {f"{_D}strategy": "fsdp2", f"{_D}reshard_after_forward": _stage(values) == 3}


def _read_strategy(document: Document, ranks: int) -> dict[str, Any]:
    if document.get(f"{_D}strategy", "fsdp2") == "ddp":
        return {"parallel.zero_stage": 0}
    reshards = document.get(f"{_D}reshard_after_forward")
    has_pipeline = int(document.get(f"{_D}pp_size") or 1) > 1
    return {"parallel.zero_stage": 3 if (not has_pipeline if reshards is None else reshards) else 2}


def _degree(name: str) -> Row:
    setting, key = f"parallel.{name}", f"{_D}{name}_size"

    def write(values: Values) -> Document:
        size = int(values.get(setting, 1))
        companions = {f"{_D}sequence_parallel": True} if name == "tp" else {}
        return {key: size} | companions if size > 1 else {}

    def read(document: Document, ranks: int) -> dict[str, Any]:
        return {setting: int(document.get(key) or 1)}

    keys = (key, f"{_D}sequence_parallel") if name == "tp" else (key,)
    return Row(setting, Level.EXPRESSED, keys, write=write, read=read)


def _copies(values: Values) -> int:
    shard_ranks = values.get("parallel.shard_ranks")
    data = int(values["parallel.dp"]) * int(values["parallel.cp"])
    return data // int(shard_ranks) if shard_ranks else 1


def _hybrid(values: Values) -> bool:
    """Copies are of data parallel ranks, over whole cp groups."""
    return int(values["parallel.dp"]) % _copies(values) == 0


def _pipeline(values: Values) -> Document:
    pp = int(values["parallel.pp"])
    if pp == 1:
        return {}
    kind = values["schedule.kind"] if _supports_schedule(values) else "1f1b"
    chunks = int(values.get("schedule.chunks", 1)) if _supports_schedule(values) else 1
    section: Document = {f"{_D}pp_size": pp, f"{_PIPE}pp_schedule": _SCHEDULES[kind],
                       f"{_PIPE}pp_microbatch_size": values["batch.micro_batch"]}  # fmt: skip
    layers = int(values["model.layers"]) // (pp * chunks)
    return section | ({f"{_PIPE}layers_per_stage": layers} if chunks > 1 else {})


def _supports_schedule(values: Values) -> bool:
    chunks = values.get("schedule.chunks", 1)
    is_even = int(values["model.layers"]) % (int(values["parallel.pp"]) * chunks) == 0
    kind = values.get("schedule.kind")
    return kind in _SCHEDULES and (chunks > 1) == (kind == "interleaved") and (chunks == 1 or is_even)


def _local(values: Values) -> int:
    """Sequences of a forward: of a pipeline all that a rank accumulates."""
    whole = values["batch.global_batch"] // values["parallel.dp"]
    return int(whole if values["parallel.pp"] > 1 else values["batch.micro_batch"])


def _dp(document: Document, ranks: int) -> int:
    split = 1
    for name in ("tp", "pp", "cp"):
        split *= int(document.get(f"{_D}{name}_size") or 1)
    return max(1, ranks // split)


def _recomputes(values: Values) -> Document:
    kind = values["memory.recompute"]
    return {f"{_D}activation_checkpointing": "selective" if kind == "selective" else kind == "full"}


def _recompute_of(document: Document, ranks: int) -> dict[str, Any]:
    kind = document.get(f"{_D}activation_checkpointing", False)
    return {"memory.recompute": kind if kind == "selective" else "full" if kind in (True, "full") else "none"}


def _optimizer(values: Values) -> Document:
    common: Document = {
        f"{_O}lr": values["train.learning_rate"],
        f"{_O}weight_decay": values["train.weight_decay"],
    }
    if values["train.optimizer"] == "sgd":
        return {_TARGET: "torch.optim.SGD", **common, f"{_O}momentum": values["train.momentum"]}
    return {_TARGET: "torch.optim.AdamW", **common, f"{_O}eps": values["train.epsilon"],
            f"{_O}betas": [values["train.beta1"], values["train.beta2"]]}  # fmt: skip


def _read_optimizer(document: Document, ranks: int) -> dict[str, Any]:
    """torch's usual values where a recipe leaves them out."""
    name = _OPTIMIZERS.get(str(document.get(_TARGET)))
    if name is None:
        return {}
    values = {
        "train.optimizer": name,
        "train.learning_rate": document.get(f"{_O}lr", 1e-3 if name == "sgd" else 1e-4),
    }
    if name == "sgd":
        return values | {"train.momentum": document.get(f"{_O}momentum", 0.0),
                        "train.weight_decay": document.get(f"{_O}weight_decay", 0.0)}  # fmt: skip
    betas = learning.read_betas(f"{_O}betas", document.get(f"{_O}betas", [0.9, 0.999]))
    return values | betas | {"train.epsilon": document.get(f"{_O}eps", 1e-8),
                            "train.weight_decay": document.get(f"{_O}weight_decay", 0.01)}  # fmt: skip


def _schedule(values: Values) -> Document:
    kind, rise = learning.kind_of(values), values["train.learning_rate_warmup"]
    least = {f"{_L}min_lr": learning.least_rate(values)} if kind != learning.CONSTANT else {}
    return {f"{_L}lr_decay_style": kind, f"{_L}init_lr": 0.0, f"{_L}lr_warmup_steps": rise if _warms(values) else 0,
            **least}  # fmt: skip


def _warms(values: Values) -> bool:
    return bool(values["train.learning_rate_warmup"] < values["train.steps"])


def _read_schedule(document: Document, ranks: int) -> dict[str, Any]:
    """Without the section the rate stays; a floor that it leaves out is a hundredth."""
    if not any(key.startswith(_L) for key in document):
        return {}
    kind, rate = document.get(f"{_L}lr_decay_style", "cosine"), document.get(f"{_O}lr")
    steps, rise = document.get(f"{_S}max_steps"), document.get(f"{_L}lr_warmup_steps")
    if rise is None and steps:
        rise = min(1000, steps // 10)
    values = {"train.learning_rate_warmup": rise} if rise is not None else {}
    if kind not in learning.RATE_SCHEDULES:
        return values
    least = document.get(f"{_L}min_lr")
    floor = 0.01 if least is None else learning.floor_of(least, rate)
    return values | learning.read_fall(kind, floor, steps, rise or 0)


_MERGE = """\
merged="$(mktemp --suffix=.yaml)"
python3 - "$1" "$HERE/automodel.yaml" >"$merged" <<'MERGE'
import sys, yaml
recipe, ours = (yaml.safe_load(open(name)) or {} for name in sys.argv[1:])
merged = {key: value if "_target_" in value else {**recipe.get(key, {}), **value} for key, value in ours.items()}
print(yaml.safe_dump({**recipe, **merged}))
MERGE
"""

ROWS = add_common_rows((
    Row("parallel.dp", Level.EXPRESSED, (f"{_D}dp_size",), "the ranks that tp, pp and cp leave",
        write=lambda values: {f"{_D}dp_size": values["parallel.dp"]},
        read=lambda document, ranks: {"parallel.dp": _dp(document, ranks)}),
    _degree("tp"),
    Row("parallel.pp", Level.EXPRESSED, (f"{_D}pp_size",), write=_pipeline,
        read=lambda document, ranks: {"parallel.pp": int(document.get(f"{_D}pp_size") or 1)}),
    _degree("cp"),
    _degree("ep"),
    Row("parallel.zero_stage", Level.EQUIVALENT, (f"{_D}strategy", f"{_D}reshard_after_forward"),
        "0 is DDP where ranks are split no other way; else there is FSDP2, so 0 and 1 become 2",
        "stage 1: export to deepspeed or megatron",
        write=_strategy, read=_read_strategy, accepts=lambda values: _stage(values) == values["parallel.zero_stage"]),
    Row("parallel.shard_ranks", Level.EXPRESSED, (f"{_D}dp_replicate_size",), "over whole cp groups",
        write=lambda values: {f"{_D}dp_replicate_size": _copies(values)}
        if _copies(values) > 1 and _hybrid(values) and _stage(values) else {},
        read=lambda document, ranks: {"parallel.shard_ranks": _dp(document, ranks)
                                      * int(document.get(f"{_D}cp_size") or 1) // document[f"{_D}dp_replicate_size"]}
        if (document.get(f"{_D}dp_replicate_size") or 1) > 1 else {},
        accepts=lambda values: values["parallel.shard_ranks"] is None or _hybrid(values)),
    Row("batch.micro_batch", Level.EXPRESSED, (f"{_S}local_batch_size", f"{_PIPE}pp_microbatch_size"),
        "of a pipeline the second, and the first is all that a rank accumulates",
        write=lambda values: {f"{_S}local_batch_size": _local(values)},
        read=lambda document, ranks: {"batch.micro_batch": document.get(f"{_PIPE}pp_microbatch_size")
                                      or document[f"{_S}local_batch_size"]}
        if f"{_S}local_batch_size" in document else {}),
    same("batch.global_batch", f"{_S}global_batch_size"),
    Row("schedule.kind", Level.EXPRESSED, (f"{_PIPE}pp_schedule",),
        "1f1b, gpipe, and interleaved where layers divide", "others become 1f1b",
        read=lambda document, ranks: {"schedule.kind": {name.lower(): ours for ours, name in _SCHEDULES.items()}.get(
            str(document[f"{_PIPE}pp_schedule"]).lower(), "1f1b")} if document.get(f"{_PIPE}pp_schedule") else {},
        accepts=_supports_schedule),
    Row("schedule.chunks", Level.EQUIVALENT, (f"{_PIPE}layers_per_stage",),
        "as layers of a stage, which a file without the model does not turn back", "say it beside an import",
        accepts=lambda values: values["schedule.chunks"] == 1),
    Row("overlap.bucket_mb", Level.EXPRESSED, (f"{_D}bucket_cap_mb",), "of DDP alone",
        write=lambda values: {f"{_D}bucket_cap_mb": values["overlap.bucket_mb"]}
        if "overlap.bucket_mb" in values and not _fsdp(values) else {},
        read=lambda document, ranks: {"overlap.bucket_mb": float(document[f"{_D}bucket_cap_mb"])}
        if document.get(f"{_D}bucket_cap_mb") else {},
        accepts=lambda values: values["overlap.bucket_mb"] == 25 or not _fsdp(values)),
    Row("memory.recompute", Level.EXPRESSED, (f"{_D}activation_checkpointing",), write=_recomputes, read=_recompute_of),
    Row("memory.offload", Level.EXPRESSED, (f"{_D}offload_policy.pin_memory",), "optimizer, under FSDP2 alone",
        write=lambda values: {f"{_D}offload_policy.pin_memory": True}
        if values["memory.offload"] in ("optimizer", "both") and _fsdp(values) else {},
        read=lambda document, ranks: {"memory.offload": "optimizer"}
        if any(key.startswith(f"{_D}offload_policy") for key in document) else {},
        accepts=lambda values: values["memory.offload"] == "none"
        or (values["memory.offload"] == "optimizer" and _fsdp(values))),
    same("train.steps", f"{_S}max_steps"),
    Row("train.learning_rate", Level.EXPRESSED, (f"{_O}lr",), write=_optimizer, read=_read_optimizer),
    Row("train.weight_decay", Level.EQUIVALENT, (f"{_O}weight_decay",), "norms decay, too"),
    Row("train.optimizer", Level.EXPRESSED, (_TARGET,), "AdamW and SGD", "name another one of its own in the recipe",
        accepts=lambda values: values["train.optimizer"] in ("adamw", "sgd")),
    Row("train.beta1", Level.EXPRESSED, (f"{_O}betas",)),
    Row("train.beta2", Level.EXPRESSED, (f"{_O}betas",)),
    Row("train.epsilon", Level.EXPRESSED, (f"{_O}eps",)),
    Row("train.momentum", Level.EXPRESSED, (f"{_O}momentum",), "of SGD",
        accepts=lambda values: values["train.optimizer"] == "sgd" or values["train.momentum"] == 0.9),
    Row("train.learning_rate_warmup", Level.EQUIVALENT, (f"{_L}lr_warmup_steps", f"{_L}init_lr"),
        "fewer than all steps; the first has the rate 0", accepts=_warms),
    Row("train.learning_rate_schedule", Level.EXPRESSED, (f"{_L}lr_decay_style",), "over max_steps",
        write=_schedule, read=_read_schedule, accepts=learning.kind_arrives),
    Row("train.learning_rate_floor", Level.EXPRESSED, (f"{_L}min_lr",), "as a rate", accepts=learning.whole_floor),
    convert_row("train.clip_norm", "clip_grad_norm.max_norm", lambda norm: norm or _UNREACHED,
              lambda norm: norm if norm < _UNREACHED else None),
    Row("train.validate_every", Level.EXPRESSED, (f"{_S}val_every_steps",),
        write=lambda values: {f"{_S}val_every_steps": values["train.validate_every"]}
        if values["train.validate_every"] else {},
        read=lambda document, ranks: {"train.validate_every": document.get(f"{_S}val_every_steps")}),
    Row("checkpoint.every_steps", Level.EXPRESSED, (f"{_S}ckpt_every_steps",),
        write=lambda values: {f"{_S}ckpt_every_steps": values["checkpoint.every_steps"]}
        if values["checkpoint.every_steps"] else {},
        read=lambda document, ranks: {"checkpoint.every_steps": document.get(f"{_S}ckpt_every_steps")}),
))  # fmt: skip


def problems(document: Document, ranks: int) -> Iterator[InputError]:
    """What is wrong, whether the parser of Automodel refuses it or lets it through: no import asks that one."""
    yield from documents.unknown_keys("automodel", document)
    for name in _SIZES:
        value = document.get(f"{_D}{name}")
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            yield InputError(f"{_D}{name}", value, "give a whole number, 1 or more")
            return
    split = 1
    for name in ("tp", "pp", "cp"):
        split *= int(document.get(f"{_D}{name}_size") or 1)
    if ranks and ranks % split:
        yield InputError(
            f"{_D}tp_size", document.get(f"{_D}tp_size", 1), f"x pp x cp = {split} must divide {ranks} ranks"
        )
    dp_size = document.get(f"{_D}dp_size")
    if ranks and dp_size and dp_size * split != ranks:
        yield InputError(
            f"{_D}dp_size", dp_size, f"x tp x pp x cp = {dp_size * split}, and there are {ranks} ranks"
        )


AUTOMODEL = Format(
    name="automodel",
    title="NeMo Automodel: sections of a recipe in YAML",
    file="automodel.yaml",
    rows=ROWS,
    degrees=only("tp", "pp", "cp", "ep"),
    text=documents.yaml_text,
    document=documents.read_yaml,
    problems=problems,
    partly=(f"{_PIPE}pp_schedule", _TARGET, f"{_L}lr_decay_style", f"{_L}init_lr"),
    launch=Launch(
        "NeMo Automodel",
        "recipe.yaml [its other options]",
        "your recipe, which is merged with it",
        torchrun_command('-m nemo_automodel.cli.app "$merged" "${@:2}"', _MERGE),
    ),
    test_evidence={"parsed": "by nemo-automodel 0.7.0", "trained": "no"},
)
