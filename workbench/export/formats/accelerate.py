"""accelerate's YAML file: what its launcher starts ranks with, and puts into their environment.

One that says ``use_cpu`` or MULTI_CPU is never written: its launcher then starts ranks that train alone, without a word
(1.15.0).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.config.errors import InputError
from workbench.export.mapping import documents
from workbench.export.mapping.launch import Launch
from workbench.export.mapping.rows import (
    DeepspeedFile,
    Document,
    Format,
    Level,
    Row,
    Values,
    accumulation_of,
    only,
    ranks_of,
)
from workbench.export.mapping.unexpressed import add_common_rows

_FSDP, _MESH, _DEEPSPEED = "fsdp_config.fsdp_", "parallelism_config.parallelism_config_", "deepspeed_config."
_RESHARD = f"{_FSDP}reshard_after_forward"
#: What accelerate itself says of DeepSpeed, where no file of DeepSpeed's does.
_OF_ITS_FILE = ("gradient_accumulation_steps", "gradient_clipping", "zero_stage", "offload_optimizer_device",
                "offload_param_device", "offload_optimizer_nvme_path", "offload_param_nvme_path",
                "zero3_save_16bit_model")  # fmt: skip
#: Of FSDP1, and the stage that each is.
_STRATEGIES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "HYBRID_SHARD_ZERO2": 2}


def _splits(values: Values) -> bool:
    return bool(values["parallel.tp"] > 1 or values["parallel.cp"] > 1)


def _stage(values: Values) -> int:
    """The stage as it is written: beside tp and cp there is FSDP alone."""
    wanted = int(values.get("parallel.zero_stage", 0))
    return max(2, wanted) if _splits(values) else wanted


def _shard(values: Values) -> int:
    """Ranks of ``dp_shard_size``."""
    whole, shard_ranks = int(values["parallel.dp"]), values.get("parallel.shard_ranks")
    if _stage(values) < 2 or shard_ranks is None or not _hybrid(values):
        return whole
    return int(shard_ranks) // int(values["parallel.cp"])


def _hybrid(values: Values) -> bool:
    """Whether a mesh can have so many ranks in a sharded copy."""
    shard_ranks, cp = int(values["parallel.shard_ranks"]), int(values["parallel.cp"])
    if shard_ranks % cp or int(values["parallel.dp"]) % max(1, shard_ranks // cp):
        return False
    return shard_ranks // cp > 1 or not _splits(values)


def _kind(values: Values) -> Document:
    ranks, stage = ranks_of(values), _stage(values)
    if ranks == 1:
        return {"distributed_type": "NO"}
    if stage == 1:
        return {"distributed_type": "DEEPSPEED", f"{_DEEPSPEED}zero_stage": 1,
                f"{_DEEPSPEED}gradient_accumulation_steps": accumulation_of(values),
                f"{_DEEPSPEED}zero3_init_flag": False}  # fmt: skip
    if stage == 0:
        return {"distributed_type": "MULTI_GPU"}
    return {"distributed_type": "FSDP", f"{_FSDP}version": 2, _RESHARD: stage == 3,
            f"{_FSDP}auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}  # fmt: skip


def _mesh(values: Values) -> Document:
    shard, dp = _shard(values), int(values["parallel.dp"])
    if not _splits(values) and (_stage(values) < 2 or shard == dp):
        return {}
    sizes = {
        "dp_replicate": dp // shard,
        "dp_shard": shard,
        "tp": values["parallel.tp"],
        "cp": values["parallel.cp"],
    }
    return {f"{_MESH}{name}_size": size for name, size in sizes.items()}


def _size(document: Document, name: str) -> int:
    return int(document.get(f"{_MESH}{name}_size", 1))


def _stage_of(document: Document, ranks: int) -> dict[str, Any]:
    kind = document.get("distributed_type")
    if kind == "DEEPSPEED":
        return {"parallel.zero_stage": int(document.get(f"{_DEEPSPEED}zero_stage", 2))}
    if kind != "FSDP":
        return {"parallel.zero_stage": 0}
    if document.get(f"{_FSDP}version", 1) == 1:
        strategy = document.get(f"{_FSDP}sharding_strategy", "FULL_SHARD")
        return {"parallel.zero_stage": _STRATEGIES.get(str(strategy), 3)}
    return {"parallel.zero_stage": 3 if str(document.get(_RESHARD, True)).lower() == "true" else 2}


def _degrees(document: Document, ranks: int) -> dict[str, Any]:
    tp, cp = _size(document, "tp"), _size(document, "cp")
    degrees = {"parallel.tp": tp, "parallel.cp": cp, "parallel.dp": max(1, ranks // (tp * cp))}
    if _size(document, "dp_replicate") > 1 and _size(document, "dp_shard") * cp > 1:
        degrees["parallel.shard_ranks"] = _size(document, "dp_shard") * cp
    return degrees


def _uses_deepspeed(values: Values) -> bool:
    """Whether ranks are DeepSpeed's, whose launcher says nothing of compilation."""
    return _stage(values) == 1 and ranks_of(values) > 1


def _offloading(values: Values) -> Document:
    if values["memory.offload"] not in ("optimizer", "both"):
        return {}
    if _stage(values) == 1:
        return {f"{_DEEPSPEED}offload_optimizer_device": "cpu"}
    return {f"{_FSDP}offload_params": True} if _stage(values) and ranks_of(values) > 1 else {}


def _offload_of(document: Document, ranks: int) -> dict[str, Any]:
    settings = (document.get(f"{_FSDP}offload_params"), document.get(f"{_DEEPSPEED}offload_optimizer_device"))
    return {
        "memory.offload": "optimizer"
        if str(settings[0]).lower() == "true" or settings[1] == "cpu"
        else "none"
    }


def _under_fsdp(values: Values) -> bool:
    return _stage(values) >= 2 and ranks_of(values) > 1


def _recompute_of(document: Document, ranks: int) -> dict[str, Any]:
    is_on = str(document.get(f"{_FSDP}activation_checkpointing", False)).lower() == "true"
    return {"memory.recompute": "full" if is_on else "none"}


#: Its launcher takes hosts by names of its own.
_END = """\
where=(--num_machines "$NNODES")
if (( NNODES > 1 )); then
  where+=(--machine_rank "${NODE_RANK:?give NODE_RANK, 0 on the first machine}"
          --main_process_ip "${MASTER_ADDR:?give MASTER_ADDR, the first machine}"
          --main_process_port "${MASTER_PORT:-29500}")
fi
exec accelerate launch --config_file "$HERE/accelerate.yaml" "${where[@]}" "$@\""""

ROWS = add_common_rows((
    Row("parallel.dp", Level.EXPRESSED, ("num_processes", "num_machines", "machine_rank"),
        "num_processes is the number of ranks",
        write=lambda values: {"num_machines": 1, "machine_rank": 0, "num_processes": ranks_of(values)},
        read=_degrees),
    Row("parallel.tp", Level.EXPRESSED, (f"{_MESH}tp_size",)),
    Row("parallel.cp", Level.EXPRESSED, (f"{_MESH}cp_size",)),
    Row("parallel.zero_stage", Level.EQUIVALENT,
        ("distributed_type", f"{_FSDP}version", _RESHARD, f"{_FSDP}auto_wrap_policy", f"{_FSDP}sharding_strategy",
         f"{_DEEPSPEED}zero_stage", f"{_DEEPSPEED}gradient_accumulation_steps", f"{_DEEPSPEED}zero3_init_flag"),
        "0 is MULTI_GPU, 1 DeepSpeed, 2 and 3 FSDP2; beside tp and cp there is FSDP2 alone, so 0 and 1 become 2",
        "without tp and cp all stages are to be had",
        write=_kind, read=_stage_of,
        accepts=lambda values: _stage(values) == values["parallel.zero_stage"]),
    Row("parallel.shard_ranks", Level.EXPRESSED, (f"{_MESH}dp_shard_size", f"{_MESH}dp_replicate_size"),
        "a mesh shards over whole cp groups, and beside tp and cp over more than one of them",
        write=_mesh,
        accepts=lambda values: values["parallel.shard_ranks"] is None or _hybrid(values)),
    Row("memory.recompute", Level.EXPRESSED, (f"{_FSDP}activation_checkpointing",),
        "whole layers, under FSDP2 alone", "else call the model's gradient_checkpointing_enable()",
        write=lambda values: {f"{_FSDP}activation_checkpointing": True}
        if values["memory.recompute"] == "full" and _under_fsdp(values) else {},
        read=_recompute_of,
        accepts=lambda values: values["memory.recompute"] == "none"
        or (values["memory.recompute"] == "full" and _under_fsdp(values))),
    Row("memory.offload", Level.EXPRESSED, (f"{_FSDP}offload_params", f"{_DEEPSPEED}offload_optimizer_device"),
        "optimizer, where ranks share it; activations have no key", write=_offloading, read=_offload_of,
        accepts=lambda values: values["memory.offload"] == "none"
        or (values["memory.offload"] == "optimizer" and _stage(values) > 0 and ranks_of(values) > 1)),
    Row("precision", Level.EXPRESSED, ("mixed_precision",),
        write=lambda values: {"mixed_precision": "bf16" if values["precision"] == "bf16" else "no"},
        read=lambda document, ranks: {"precision": "bf16" if document.get("mixed_precision") == "bf16" else "fp32"}),
    Row("compile", Level.EXPRESSED, ("dynamo_config.dynamo_backend",), "not beside DeepSpeed (stage 1)",
        "call torch.compile on the model",
        write=lambda values: {"dynamo_config.dynamo_backend": "INDUCTOR"}
        if values["compile"] and not _uses_deepspeed(values) else {},
        read=lambda document, ranks: {
            "compile": str(document.get("dynamo_config.dynamo_backend", "NO")).upper() == "INDUCTOR"},
        accepts=lambda values: not (values["compile"] and _uses_deepspeed(values))),
    Row("device", Level.NOT, ("use_cpu",), "ranks that its launcher starts with use_cpu train alone",
        "export ACCELERATE_USE_CPU=true, and start the script with torchrun",
        accepts=lambda values: values["device"] == "auto"),
))  # fmt: skip


def problems(document: Document, ranks: int) -> Iterator[InputError]:
    """What is wrong, whether the parser of accelerate refuses it or lets it through: no import asks that one."""
    yield from documents.unknown_keys("accelerate", document)
    yield from documents.one_of(document, f"{_FSDP}version", 1, 2)
    if document.get(f"{_FSDP}version") == 2 and str(document.get(_RESHARD, True)).lower() not in (
        "true",
        "false",
    ):
        yield InputError(_RESHARD, document[_RESHARD], "give true or false")
    sizes = [key for key in document if key.startswith(_MESH) and key.endswith("_size")]
    for key in sizes:
        if not isinstance(document[key], int) or document[key] < 1:
            yield InputError(key, document[key], "give a whole number, 1 or more")
            return
    world = document.get("num_processes") or ranks
    for key in sizes:
        yield from documents.divides(document, key, int(world), "num_processes")
    product = 1
    for key in sizes:
        product *= document[key]
    if sizes and product != world:
        yield InputError(
            f"{_MESH}*", product, f"the sizes multiply to {product}, and num_processes is {world}"
        )
    if document.get("use_cpu") and document.get("distributed_type") == "FSDP":
        yield InputError("use_cpu", True, "under FSDP each rank trains alone, without a word; leave it out")
    if document.get("distributed_type") == "MULTI_CPU" and not any(
        key.startswith("mpirun") for key in document
    ):
        remedy = "starts a single process without mpirun_config; start the script with torchrun"
        yield InputError("distributed_type", "MULTI_CPU", remedy)


def _beside_deepspeed(document: Document) -> Iterator[InputError]:
    """Its launcher refuses what DeepSpeed's file has to say."""
    for key in ("mixed_precision", *(f"{_DEEPSPEED}{name}" for name in _OF_ITS_FILE)):
        if document.get(key) is not None:
            remedy = (
                "is refused by accelerate beside deepspeed_config_file; leave it out, and say it in that file"
            )
            yield InputError(key, document[key], remedy)


ACCELERATE = Format(
    name="accelerate",
    title="accelerate's launcher: its YAML file",
    file="accelerate.yaml",
    rows=ROWS,
    degrees=only("tp", "cp"),
    constants={"compute_environment": "LOCAL_MACHINE"},
    text=documents.yaml_text,
    document=documents.read_yaml,
    problems=problems,
    partly=("mixed_precision", "dynamo_config.dynamo_backend"),
    exceeding={f"{_FSDP}sharding_strategy": ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2")},
    launch=Launch("accelerate's launcher", "train.py [its arguments]", "your training script", _END),
    deepspeed=DeepspeedFile(
        key=f"{_DEEPSPEED}deepspeed_config_file",
        says=lambda document, ranks: {"bf16.enabled": document.get("mixed_precision") in ("bf16", "fp8")},
        insists=False,
        problems=_beside_deepspeed,
        batch=False,
    ),
    test_evidence={"parsed": "by accelerate 1.15.0", "trained": "DDP and FSDP2 on two CPU ranks"},
    ranks=lambda document: document.get("num_processes"),
)
