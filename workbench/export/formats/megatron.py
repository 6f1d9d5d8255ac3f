"""Arguments of Megatron-LM's ``pretrain_gpt.py``, one a line; its bf16 keeps weights in bf16 beside an fp32 copy.

Stages of uneven layers are written as a layout (``Ett|ttL``). Buckets are counted in elements there, of 4 bytes here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from engine.config.errors import InputError
from engine.config.layout import layers_of_stages
from engine.config.methods.compression_methods import COMPRESSION_METHODS, methods_by_export_name
from workbench.export.formats.megatron_arguments import FSDP, RANKS, ZERO1, missing_parts, read, text
from workbench.export.mapping import documents, learning
from workbench.export.mapping.launch import Launch, torchrun_command
from workbench.export.mapping.rows import (
    Document,
    Format,
    Level,
    Row,
    Values,
    accumulation_of,
    convert_row,
    drop,
    only,
    same,
    same_read,
)
from workbench.export.mapping.unexpressed import add_common_rows

_TP, _PP, _CP = "--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size"
_VIRTUAL, _LAYOUT = "--num-virtual-stages-per-pipeline-rank", "--pipeline-model-parallel-layout"
_STRATEGY = "--data-parallel-sharding-strategy"
#: What says which layers a stage has, and what counts as one more of them.
_PLACED = (_VIRTUAL, _LAYOUT, "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers",
           "--hybrid-layer-pattern")  # fmt: skip
_COUNTED = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")
_STAGES = {2: "optim_grads", 3: "optim_grads_params"}
_WAYS = {"ring": "p2p", "ulysses": "a2a"}
_BYTES, _MIB = 4, 2**20
_OPTIMIZERS = {"adam": "adamw", "sgd": "sgd", "muon": "muon"}
#: With it Muon's steps are as long as AdamW's, as here (arXiv 2502.16982).
_MUON_SCALE = 0.2


def _stage(values: Values) -> int:
    return int(values.get("parallel.zero_stage", 0))


def _stages(values: Values) -> int:
    return int(values["parallel.pp"]) * _chunks(values)


def _chunks(values: Values) -> int:
    return int(values.get("schedule.chunks", 1)) if _interleaves(values) else 1


def _interleaves(values: Values) -> bool:
    """Whether its interleaved schedule has what it needs: micro-batches in whole groups of the pipeline's ranks."""
    pp = int(values["parallel.pp"])
    wanted = values.get("schedule.kind") == "interleaved" and values.get("schedule.chunks", 1) > 1
    return pp > 1 and wanted and accumulation_of(values) % pp == 0


def _layers_per_stage(values: Values) -> list[int]:
    """Layers of each stage."""
    stage_layers = values.get("schedule.stage_layers") if _arrive(values) else None
    return [
        len(layers) for layers in layers_of_stages(int(values["model.layers"]), _stages(values), stage_layers)
    ]


def _arrive(values: Values) -> bool:
    stage_layers = values.get("schedule.stage_layers")
    return stage_layers is None or len(stage_layers) == _stages(values)


def _pipeline(values: Values) -> Document:
    pp, stage_layers = values["parallel.pp"], _layers_per_stage(values)
    if pp == 1:
        return {}
    if len(set(stage_layers)) > 1:
        stages = "|".join("t" * count for count in stage_layers)
        return {_PP: pp, _LAYOUT: f"E{stages}L"}
    return {_PP: pp} | ({_VIRTUAL: _chunks(values)} if _chunks(values) > 1 else {})


def _read_pipeline(document: Document, ranks: int) -> dict[str, Any]:
    pp, layout = int(document.get(_PP, 1)), document.get(_LAYOUT)
    values: dict[str, Any] = {"parallel.pp": pp}
    chunks = int(document.get(_VIRTUAL) or 1)
    if pp > 1 and layout:
        counts = [stage.count("t") for stage in _expand_layout(str(layout)).split("|")]
        chunks = max(1, len(counts) // pp)
        even_counts = [len(layers) for layers in layers_of_stages(sum(counts), len(counts))]
        values |= {} if counts == even_counts else {"schedule.stage_layers": counts}
    elif pp > 1 and (layers_per_chunk := document.get("--num-layers-per-virtual-pipeline-stage")):
        chunks = max(1, int(document.get("--num-layers") or layers_per_chunk) // (pp * int(layers_per_chunk)))
    if pp > 1:
        values |= {"schedule.kind": "interleaved" if chunks > 1 else "1f1b", "schedule.chunks": chunks}
    return values


def _expand_layout(layout: str) -> str:
    """``t*3`` and ``(tt|)*2`` written out."""
    whole = re.sub(r"\(([^()]*)\)\*(\d+)", lambda match: match[1] * int(match[2]), layout.replace(",", ""))
    return re.sub(r"([a-zA-Z])\*(\d+)", lambda match: match[1] * int(match[2]), whole)


def _tensor(values: Values) -> Document:
    tp = values["parallel.tp"]
    return {_TP: tp, "--sequence-parallel": True} if tp > 1 else {}


def _degree(key: str, setting: str) -> Row:
    def write(values: Values) -> Document:
        return {key: values[setting]} if values.get(setting, 1) > 1 else {}

    def read(document: Document, ranks: int) -> dict[str, Any]:
        return {setting: int(document.get(key, 1))}

    return Row(setting, Level.EXPRESSED, (key,), write=write, read=read)


def _sharding(values: Values) -> Document:
    stage = _stage(values)
    if not stage:
        return {}
    common: Document = {ZERO1: True}
    return common | ({FSDP: True, _STRATEGY: _STAGES[stage], "--ckpt-format": "fsdp_dtensor",
                      "--no-gradient-accumulation-fusion": True} if stage > 1 else {})  # fmt: skip


def _stage_of(document: Document, ranks: int) -> dict[str, Any]:
    if document.get(FSDP):
        back = {name: stage for stage, name in _STAGES.items()} | {"optim": 1, "no_shard": 0}
        return {"parallel.zero_stage": back.get(str(document.get(_STRATEGY, "no_shard")), 0)}
    return {"parallel.zero_stage": 1 if document.get(ZERO1) else 0}


def _dp(document: Document, ranks: int) -> dict[str, Any]:
    split = 1
    for key in (_TP, _PP, _CP):
        split *= int(document.get(key, 1))
    return {"parallel.dp": max(1, ranks // split)}


def _data_ranks(document: Document, ranks: int) -> int:
    """Those whose gradients are reduced: context-parallel ranks are among them."""
    return int(_dp(document, ranks)["parallel.dp"]) * int(document.get(_CP, 1))


def _reduction_flag(values: Values) -> str | None:
    """The flag of the method that gradients are reduced with; there are such flags beside bf16 weights alone."""
    method = COMPRESSION_METHODS.get(values.get("compression.method", "none"))
    return None if method is None or values["precision"] != "bf16" else method.export_names.get("megatron")


def _read_compression(document: Document, ranks: int) -> dict[str, Any]:
    if _data_ranks(document, ranks) == 1 or _stage_of(document, ranks)["parallel.zero_stage"]:
        return {}
    named = [name for flag, name in methods_by_export_name("megatron").items() if document.get(flag)]
    return {"compression.method": named[0]} if named else {}


def _elements(values: Values) -> int:
    return max(1, round(float(values["overlap.bucket_mb"]) * _MIB / _BYTES))


def _recomputing(values: Values) -> Document:
    kind, layers = values["memory.recompute"], values.get("memory.recompute_layers")
    if kind == "full":
        method = "uniform" if layers is None else "block"
        return {
            "--recompute-granularity": "full",
            "--recompute-method": method,
            "--recompute-num-layers": layers or 1,
        }
    return {"--recompute-granularity": "selective"} if kind == "selective" else {}


def _recompute_of(document: Document, ranks: int) -> dict[str, Any]:
    kind = document.get("--recompute-granularity") or (
        "selective" if document.get("--recompute-activations") else "none"
    )
    block = kind == "full" and document.get("--recompute-method") == "block"
    return {"memory.recompute": kind} | (
        {"memory.recompute_layers": document["--recompute-num-layers"]} if block else {}
    )


def _sequences(document: Document, ranks: int) -> dict[str, Any]:
    values = {"data.sequence_length": document["--seq-length"]} if "--seq-length" in document else {}
    micro, whole = document.get("--micro-batch-size"), document.get("--global-batch-size")
    if micro is not None:
        dp = _dp(document, ranks)["parallel.dp"]
        values |= {"batch.micro_batch": micro, "batch.global_batch": whole or micro * dp}
    return values


def _sizes(values: Values) -> Document:
    heads, groups = values["model.heads"], values["model.kv_heads"]
    grouped: Document = (
        {"--group-query-attention": True, "--num-query-groups": groups} if groups != heads else {}
    )
    return {"--num-attention-heads": heads} | grouped


def _read_sizes(document: Document, ranks: int) -> dict[str, Any]:
    heads = document.get("--num-attention-heads")
    if heads is None:
        return {}
    grouped = document.get("--group-query-attention")
    return {"model.heads": heads, "model.kv_heads": document["--num-query-groups"] if grouped else heads}


def _width(document: Document, ranks: int) -> dict[str, Any]:
    """As given; else what Megatron-LM makes of the hidden size."""
    hidden = document.get("--hidden-size")
    if document.get("--ffn-hidden-size") is not None:
        return {"model.ffn_hidden": document["--ffn-hidden-size"]}
    if hidden is None:
        return {}
    return {"model.ffn_hidden": hidden * 8 // 3 // 64 * 64 if document.get("--swiglu") else 4 * hidden}


def _experts(values: Values) -> Document:
    if "model.experts" not in values:
        return {}
    capacity = values["model.capacity_factor"]
    return {"--num-experts": values["model.experts"], "--moe-router-topk": values["model.experts_per_token"],
            "--moe-ffn-hidden-size": values["model.expert_ffn_hidden"], "--moe-token-dispatcher-type": "alltoall",
            "--moe-router-load-balancing-type": ["aux_loss"], "--moe-aux-loss-coeff": [values["model.balance_weight"]],
            } | ({"--moe-expert-capacity-factor": capacity} if capacity else {})  # fmt: skip


def _read_experts(document: Document, ranks: int) -> dict[str, Any]:
    if not document.get("--num-experts"):
        return {}
    weight = document.get("--moe-aux-loss-coeff", 0.0)
    return {"model.experts": document["--num-experts"], "model.experts_per_token": document["--moe-router-topk"],
            "model.expert_ffn_hidden": document.get("--moe-ffn-hidden-size"),
            "model.capacity_factor": document.get("--moe-expert-capacity-factor"),
            "model.balance_weight": float(weight[0] if isinstance(weight, list) else weight)}  # fmt: skip


def _numbers(document: Document, ranks: int) -> dict[str, Any]:
    low = "bf16" if document.get("--bf16") else "fp32"
    return {"precision": low, "memory.parameters": low}


def _warms(values: Values) -> bool:
    return bool(values["train.learning_rate_warmup"] < values["train.steps"])


def _muon(values: Values) -> bool:
    """Whether it is Muon there, too: not where ranks share what an optimizer keeps."""
    return bool(values["train.optimizer"] == "muon" and not _stage(values))


def _optimizer(values: Values) -> Document:
    if values["train.optimizer"] == "sgd":
        return {"--optimizer": "sgd", "--sgd-momentum": values["train.momentum"]}
    adam: Document = {"--optimizer": "adam", "--adam-beta1": values["train.beta1"],
                      "--adam-beta2": values["train.beta2"], "--adam-eps": values["train.epsilon"]}  # fmt: skip
    if not _muon(values):
        return adam
    return adam | {"--optimizer": "muon", "--muon-momentum": values["train.momentum"], "--muon-nesterov": True,
                   "--muon-extra-scale-factor": _MUON_SCALE}  # fmt: skip


def _read_optimizer(document: Document, ranks: int) -> dict[str, Any]:
    name = _OPTIMIZERS.get(str(document.get("--optimizer")))
    if name is None:
        return {}
    momentum = document.get(f"--{name}-momentum")
    return {"train.optimizer": name} | ({} if momentum is None else {"train.momentum": momentum})


def _offloads(values: Values) -> bool:
    """Whether it keeps Adam's state on the host."""
    wanted = values["memory.offload"] in ("optimizer", "both") and values["train.optimizer"] != "sgd"
    return bool(wanted and _stage(values) == 1)


def _schedule(values: Values) -> Document:
    least = {"--min-lr": learning.least_rate(values)} if learning.kind_of(values) != learning.CONSTANT else {}
    return {"--lr-decay-style": learning.kind_of(values)} | least


def _read_schedule(document: Document, ranks: int) -> dict[str, Any]:
    kind = str(document.get("--lr-decay-style"))
    if kind not in learning.RATE_SCHEDULES:
        return {}
    floor = learning.floor_of(document.get("--min-lr"), document.get("--lr"))
    return learning.read_fall(
        kind, floor, document.get("--train-iters"), document.get("--lr-warmup-iters", 0)
    )


def _flag(setting: str, key: str, why: str, has_effect: Any) -> Row:
    """A setting that is on or off, where ``has_effect`` says that it can be."""

    def write(values: Values) -> Document:
        return {key: True} if values.get(setting) and has_effect(values) else {}

    def read(document: Document, ranks: int) -> dict[str, Any]:
        return {setting: True} if document.get(key) else {}

    return Row(setting, Level.EQUIVALENT, (key,), why, write=write, read=read,
               accepts=lambda values: not values[setting] or has_effect(values))  # fmt: skip


#: Its tensor parallelism counts on kernels that are started in order; Megatron-FSDP refuses that.
_BEFORE = """\
if ! grep -q -- --use-megatron-fsdp "$HERE/megatron.args"; then export CUDA_DEVICE_MAX_CONNECTIONS=1; fi
read -r -d '' -a arguments < <(tr '\\n' ' ' <"$HERE/megatron.args"; printf '\\0')
"""

_UNTIED = "--untie-embeddings-and-output-weights"
ROWS = add_common_rows((
    same("model.layers", "--num-layers"),
    same("model.hidden", "--hidden-size"),
    Row("model.heads", Level.EXPRESSED, ("--num-attention-heads",), write=_sizes, read=_read_sizes),
    Row("model.kv_heads", Level.EXPRESSED, ("--group-query-attention", "--num-query-groups")),
    Row("model.ffn_hidden", Level.EXPRESSED, ("--ffn-hidden-size", "--swiglu"),
        write=lambda values: {"--ffn-hidden-size": values["model.ffn_hidden"]}, read=_width),
    same("model.vocabulary", "--vocab-size"),
    Row("model.experts", Level.EXPRESSED, ("--num-experts", "--moe-token-dispatcher-type",
                                           "--moe-router-load-balancing-type"), write=_experts, read=_read_experts),
    Row("model.experts_per_token", Level.EXPRESSED, ("--moe-router-topk",)),
    Row("model.expert_ffn_hidden", Level.EXPRESSED, ("--moe-ffn-hidden-size",)),
    Row("model.capacity_factor", Level.EXPRESSED, ("--moe-expert-capacity-factor",)),
    Row("model.balance_weight", Level.EXPRESSED, ("--moe-aux-loss-coeff",)),
    Row("model.tied_embeddings", Level.EXPRESSED, (_UNTIED,),
        write=lambda values: {} if values["model.tied_embeddings"] else {_UNTIED: True},
        read=lambda document, ranks: {} if document.get(_UNTIED) else {"model.tied_embeddings": True}),
    drop("data.path", "a text is prepared for Megatron-LM first", "give --data-path and its tokenizer to run.sh"),
    Row("data.sequence_length", Level.EXPRESSED, ("--seq-length", "--max-position-embeddings"),
        write=lambda values: dict.fromkeys(("--seq-length", "--max-position-embeddings"),
                                           values["data.sequence_length"]),
        read=_sequences),
    Row("parallel.dp", Level.EXPRESSED, ("run.sh", RANKS), "the ranks that tp, pp and cp leave", read=_dp),
    Row("parallel.tp", Level.EXPRESSED, (_TP, "--sequence-parallel"), write=_tensor,
        read=lambda document, ranks: {"parallel.tp": int(document.get(_TP, 1))}),
    Row("parallel.pp", Level.EXPRESSED, (_PP,), write=_pipeline, read=_read_pipeline),
    _degree(_CP, "parallel.cp"),
    _degree("--expert-model-parallel-size", "parallel.ep"),
    Row("parallel.cp_method", Level.EXPRESSED, ("--cp-comm-type",),
        write=lambda values: {"--cp-comm-type": [_WAYS[values["parallel.cp_method"]]]}
        if "parallel.cp_method" in values else {},
        read=lambda document, ranks: {"parallel.cp_method": "ulysses"}
        if document.get("--cp-comm-type") in ("a2a", ["a2a"]) else {}),
    Row("parallel.zero_stage", Level.EXPRESSED, (ZERO1, FSDP, _STRATEGY, "--ckpt-format",
                                                 "--no-gradient-accumulation-fusion"),
        "1 is the distributed optimizer, 2 and 3 are Megatron-FSDP", write=_sharding, read=_stage_of),
    Row("batch.micro_batch", Level.EXPRESSED, ("--micro-batch-size",),
        write=lambda values: {"--micro-batch-size": values["batch.micro_batch"]}),
    Row("batch.global_batch", Level.EXPRESSED, ("--global-batch-size",),
        write=lambda values: {"--global-batch-size": values["batch.global_batch"]}),
    Row("schedule.kind", Level.EXPRESSED, (_VIRTUAL, "--num-layers-per-virtual-pipeline-stage"),
        "1f1b, and interleaved where micro-batches come in whole groups of pp", "others become 1f1b",
        accepts=lambda values: values["schedule.kind"] == ("interleaved" if _interleaves(values) else "1f1b")),
    Row("schedule.chunks", Level.EXPRESSED, (_VIRTUAL, _LAYOUT), "of the interleaved schedule",
        accepts=lambda values: values["schedule.chunks"] == _chunks(values)),
    Row("schedule.stage_layers", Level.EXPRESSED, (_LAYOUT,), accepts=_arrive),
    Row("compression.method", Level.EQUIVALENT, tuple(methods_by_export_name("megatron")),
        f"{' and '.join(methods_by_export_name('megatron').values())}, beside bf16 weights, from the first step on",
        "other methods have no key in Megatron-LM",
        write=lambda values: {flag: True} if (flag := _reduction_flag(values)) else {},
        read=_read_compression,
        accepts=lambda values: values["compression.method"] == "none" or _reduction_flag(values) is not None),
    Row("overlap.bucket_mb", Level.EXPRESSED, ("--ddp-bucket-size", "--overlap-grad-reduce"), "in elements of 4 bytes",
        write=lambda values: {"--ddp-bucket-size": _elements(values), "--overlap-grad-reduce": True}
        if "overlap.bucket_mb" in values else {},
        read=lambda document, ranks: {"overlap.bucket_mb": document["--ddp-bucket-size"] * _BYTES / _MIB}
        if document.get("--ddp-bucket-size") else {},
        accepts=lambda values: _elements(values) * _BYTES / _MIB == values["overlap.bucket_mb"]),
    _flag("overlap.gather_with_optimizer", "--overlap-param-gather", "gathers beside the next forward",
          lambda values: _stage(values) == 1),
    Row("memory.recompute", Level.EXPRESSED, ("--recompute-granularity", "--recompute-method", "--recompute-num-layers",
                                              "--recompute-activations"), write=_recomputing, read=_recompute_of),
    Row("memory.recompute_layers", Level.EXPRESSED, ("--recompute-method", "--recompute-num-layers"),
        "of full recomputation", "selective recomputes in all layers",
        accepts=lambda values: values["memory.recompute_layers"] is None or values["memory.recompute"] == "full"),
    Row("memory.offload", Level.EXPRESSED, ("--optimizer-cpu-offload", "--use-precision-aware-optimizer"),
        "optimizer, of stage 1, but not SGD; activations need Transformer Engine",
        write=lambda values: {"--optimizer-cpu-offload": True, "--use-precision-aware-optimizer": True}
        if _offloads(values) else {},
        read=lambda document, ranks: {"memory.offload": "optimizer"} if document.get("--optimizer-cpu-offload") else {},
        accepts=lambda values: values["memory.offload"] == "none"
        or (values["memory.offload"] == "optimizer" and _offloads(values))),
    Row("precision", Level.EXPRESSED, ("--bf16",),
        write=lambda values: {"--bf16": True} if values["precision"] == "bf16" else {}, read=_numbers),
    Row("memory.parameters", Level.EQUIVALENT, ("--bf16",), "bf16 has bf16 weights, beside an fp32 copy",
        accepts=lambda values: values["memory.parameters"] == values["precision"]),
    same("train.steps", "--train-iters"),
    same("train.seed", "--seed"),
    same("train.learning_rate", "--lr"),
    Row("train.learning_rate_warmup", Level.EQUIVALENT, ("--lr-warmup-iters",),
        "fewer than all steps; the first has the rate 0",
        write=lambda values: {"--lr-warmup-iters": values["train.learning_rate_warmup"]} if _warms(values) else {},
        read=lambda document, ranks: {"train.learning_rate_warmup": document.get("--lr-warmup-iters", 0)},
        accepts=_warms),
    Row("train.learning_rate_schedule", Level.EXPRESSED, ("--lr-decay-style",), "over --train-iters",
        write=_schedule, read=_read_schedule, accepts=learning.kind_arrives),
    Row("train.learning_rate_floor", Level.EXPRESSED, ("--min-lr",), "as a rate", accepts=learning.whole_floor),
    Row("train.optimizer", Level.EQUIVALENT, ("--optimizer", "--muon-nesterov", "--muon-extra-scale-factor"),
        "AdamW is adam; muon, of stage 0, for all matrices of layers; LAMB has no name there", "measure with adamw",
        write=_optimizer, read=_read_optimizer,
        accepts=lambda values: values["train.optimizer"] in ("adamw", "sgd") or _muon(values)),
    *(same_read(f"train.{ours}", f"--adam-{theirs}")
      for ours, theirs in (("beta1", "beta1"), ("beta2", "beta2"), ("epsilon", "eps"))),
    Row("train.momentum", Level.EXPRESSED, ("--sgd-momentum", "--muon-momentum"),
        accepts=lambda values: values["train.optimizer"] == "sgd" or _muon(values) or values["train.momentum"] == 0.9),
    same("train.weight_decay", "--weight-decay"),
    convert_row("train.clip_norm", "--clip-grad", lambda norm: norm or 0.0, lambda norm: norm or None),
    same("train.validation_batches", "--eval-iters"),
    Row("train.validate_every", Level.EXPRESSED, ("--eval-interval",),
        write=lambda values: {"--eval-interval": values["train.validate_every"]}
        if values["train.validate_every"] else {},
        read=lambda document, ranks: {"train.validate_every": document["--eval-interval"]}
        if document.get("--eval-interval") and document.get("--eval-iters") else {}),
    Row("checkpoint.every_steps", Level.EXPRESSED, ("--save-interval", "--save"),
        write=lambda values: {"--save": "checkpoints", "--save-interval": values["checkpoint.every_steps"]}
        if values["checkpoint.every_steps"] else {},
        read=lambda document, ranks: {"checkpoint.every_steps": document["--save-interval"]}
        if document.get("--save-interval") else {}),
))  # fmt: skip
_TRAINED = "its arguments and model, tensor and sequence parallel on two CPU ranks, in a loop of ours"
_CONSTANTS: Document = {
    "--swiglu": True, "--disable-bias-linear": True, "--normalization": "RMSNorm", "--position-embedding-type": "rope",
    "--attention-dropout": 0.0, "--hidden-dropout": 0.0,
    "--make-vocab-size-divisible-by": 1, "--tokenizer-type": "NullTokenizer", "--log-interval": 1,
}  # fmt: skip


def problems(document: Document, ranks: int) -> Iterator[InputError]:
    """What is wrong, whether the arguments' own checks refuse it or let it through: no import asks those."""
    arguments = {key: value for key, value in document.items() if key != RANKS}
    yield from documents.unknown_keys("megatron", arguments)
    yield from documents.positive(
        arguments, _TP, _PP, _CP, "--micro-batch-size", "--global-batch-size", "--ddp-bucket-size"
    )
    if arguments.get("--sequence-parallel") and arguments.get(_TP, 1) == 1:
        yield InputError("--sequence-parallel", True, f"does nothing without {_TP}; leave it out, or give it")
    if arguments.get("--recompute-granularity") == "full" and not arguments.get("--recompute-method"):
        yield InputError("--recompute-granularity", "full", "needs --recompute-method, uniform or block")
    heads = arguments.get("--num-attention-heads")
    if isinstance(heads, int):
        yield from documents.divides(arguments, _TP, heads, "--num-attention-heads")
    split = arguments.get(_TP, 1) * arguments.get(_PP, 1) * arguments.get(_CP, 1)
    if ranks and ranks % split:
        yield InputError(
            _TP, arguments.get(_TP, 1), f"x {_PP} x {_CP} = {split} must divide the {ranks} ranks"
        )
    yield from _uneven_parts(arguments, ranks)
    yield from missing_parts(arguments)


def _uneven_parts(arguments: Document, ranks: int) -> Iterator[InputError]:
    micro, whole, layers = (
        arguments.get(key) for key in ("--micro-batch-size", "--global-batch-size", "--num-layers")
    )
    if ranks and micro and whole and whole % (micro * (dp := _dp(arguments, ranks)["parallel.dp"])):
        remedy = f"must be a multiple of --micro-batch-size x {dp} data ranks = {micro * dp}"
        yield InputError("--global-batch-size", whole, remedy)
    if layers and not any(arguments.get(key) for key in _PLACED):
        layers += sum(key in arguments for key in _COUNTED)
        if layers % arguments.get(_PP, 1):
            yield InputError("--num-layers", layers, f"must be a multiple of {_PP} ({arguments[_PP]})")


MEGATRON = Format(
    name="megatron",
    title="Megatron-LM: arguments of pretrain_gpt.py",
    file="megatron.args",
    rows=ROWS,
    degrees=only("tp", "pp", "cp", "ep"),
    constants=_CONSTANTS,
    text=text,
    document=read,
    problems=problems,
    partly=("--lr-decay-style", "--optimizer", "--position-embedding-type", "--normalization"),
    launch=Launch(
        "Megatron-LM's pretrain_gpt.py",
        "pretrain_gpt.py --data-path ...",
        "its pretrain_gpt.py",
        torchrun_command('"$1" "${arguments[@]}" "${@:2}"', _BEFORE),
    ),
    test_evidence={"parsed": "by megatron-core 0.19.2", "trained": _TRAINED},
    ranks=lambda document: document.get(RANKS),
)
