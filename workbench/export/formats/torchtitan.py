"""A recipe of torchtitan 0.3: a function that takes a recipe of its registry and sets the run's values on it.

``PIPELINE`` microbatches are parts of ``local_batch_size`` there. A recipe is read as text, never run.
"""

from __future__ import annotations

import ast
import tomllib
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
    accumulation_of,
    convert_row,
    drop,
    only,
    same,
)
from workbench.export.mapping.unexpressed import add_common_rows

_P, _T, _L = "parallelism.", "training.", "lr_scheduler."
_SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B"}
#: What is assigned as a call, by its key: the function, and the keys of its keywords.
CALLS = {
    "FullAC.Config": ("activation_checkpoint", "full"),
    "SelectiveAC.Config": ("activation_checkpoint", "selective"),
}
_ADAMW = "default_adamw"
_PIPE = f"{_P}pipeline_parallel_"
_HEAD = '''\
"""A recipe of torchtitan 0.3.0; start it with: ./run.sh

BASE is the recipe that is changed: name one that has your model, tokenizer and data.
"""

from torchtitan.components.optimizer import default_adamw
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.llama3.config_registry import llama3_debugmodel as BASE


def exported():
    config = BASE()
'''


def _stage(values: Values) -> int:
    """The stage as it is written: beside cp there is FSDP alone, and 1 is not to be had."""
    wanted = int(values.get("parallel.zero_stage", 0))
    return max(2, wanted) if wanted == 1 or values["parallel.cp"] > 1 else wanted


def _shard(values: Values) -> int:
    dp, shard_ranks, cp = (
        int(values["parallel.dp"]),
        values.get("parallel.shard_ranks"),
        int(values["parallel.cp"]),
    )
    if not _stage(values):
        return 1
    return int(shard_ranks) // cp if shard_ranks is not None and _hybrid(values) else dp


def _hybrid(values: Values) -> bool:
    shard_ranks, cp = int(values["parallel.shard_ranks"]), int(values["parallel.cp"])
    return (
        shard_ranks % cp == 0
        and int(values["parallel.dp"]) % (shard_ranks // cp) == 0
        and shard_ranks // cp > 1
    )


def _sharding(values: Values) -> Document:
    shard, stage = _shard(values), _stage(values)
    sizes: Document = {f"{_P}data_parallel_replicate_degree": int(values["parallel.dp"]) // shard,
                       f"{_P}data_parallel_shard_degree": shard}  # fmt: skip
    return sizes | ({f"{_P}fsdp_reshard_after_forward": "always" if stage == 3 else "never"} if stage else {})


def _degree(document: Document, name: str) -> int:
    return int(document.get(f"{_P}{name}_parallel_degree", 1))


def _read_sharding(document: Document, ranks: int) -> dict[str, Any]:
    tp, pp, cp = (_degree(document, name) for name in ("tensor", "pipeline", "context"))
    dp = max(1, ranks // (tp * pp * cp))
    copies = int(document.get(f"{_P}data_parallel_replicate_degree", 1))
    shard = int(document.get(f"{_P}data_parallel_shard_degree", -1))
    shard = max(1, dp // copies) if shard < 0 else shard
    values: dict[str, Any] = {"parallel.dp": dp, "parallel.zero_stage": 0}
    if shard > 1 or cp > 1:
        # By default weights are freed again, but not with a pipeline, which would gather them for each micro-batch.
        usual = "never" if pp > 1 else "always"
        reshards = document.get(f"{_P}fsdp_reshard_after_forward", "default").replace("default", usual)
        values["parallel.zero_stage"] = 3 if reshards == "always" else 2
        values |= {"parallel.shard_ranks": shard * cp} if copies > 1 else {}
    return values


def _chunks(values: Values) -> int:
    return int(values.get("schedule.chunks", 1))


def _even(values: Values) -> bool:
    return int(values["model.layers"]) % (int(values["parallel.pp"]) * _chunks(values)) == 0


def _supports_schedule(values: Values) -> bool:
    """Whether its schedule has what it needs: micro-batches in whole groups, and stages that are alike."""
    if values.get("schedule.kind") not in _SCHEDULES:
        return False
    if _chunks(values) == 1:
        return bool(values["schedule.kind"] != "interleaved")
    return _even(values) and accumulation_of(values) % int(values["parallel.pp"]) == 0


def _pipeline(values: Values) -> Document:
    pp = int(values["parallel.pp"])
    if pp == 1:
        return {}
    chunks = _chunks(values) if _supports_schedule(values) else 1
    kind = _SCHEDULES[values["schedule.kind"]] if _supports_schedule(values) else "1F1B"
    section: Document = {f"{_P}pipeline_parallel_degree": pp, f"{_PIPE}schedule": kind,
                       f"{_PIPE}first_stage_less_layers": 0, f"{_PIPE}last_stage_less_layers": 0,
                       f"{_PIPE}microbatch_size": values["batch.micro_batch"],
                       f"{_T}disable_cuda_graphs": True}  # fmt: skip
    layers = int(values["model.layers"]) // (pp * chunks)
    return section | ({f"{_PIPE}layers_per_stage": layers} if chunks > 1 else {})


def _read_pipeline(document: Document, ranks: int) -> dict[str, Any]:
    pp = _degree(document, "pipeline")
    if pp == 1:
        return {"parallel.pp": 1}
    back = {theirs: ours for ours, theirs in _SCHEDULES.items()}
    kind = back.get(str(document.get(f"{_PIPE}schedule", "1F1B")))
    return {"parallel.pp": pp} | ({"schedule.kind": kind} if kind else {})


def _batch(values: Values) -> Document:
    micro = values["batch.micro_batch"]
    whole = micro * accumulation_of(values) if values["parallel.pp"] > 1 else micro
    return {f"{_T}local_batch_size": whole, f"{_T}global_batch_size": values["batch.global_batch"]}


def _read_batch(document: Document, ranks: int) -> dict[str, Any]:
    local, dp = int(document[f"{_T}local_batch_size"]), _read_sharding(document, ranks)["parallel.dp"]
    has_pipeline = _degree(document, "pipeline") > 1
    whole = int(document.get(f"{_T}global_batch_size", -1))
    return {"batch.micro_batch": int(document.get(f"{_PIPE}microbatch_size", 1)) if has_pipeline else local,
            "batch.global_batch": whole if whole > 0 else local * dp}  # fmt: skip


def _degree_row(setting: str, key: str) -> Row:
    return Row(setting, Level.EXPRESSED, (key,),
               write=lambda values: {key: values[setting]} if values.get(setting, 1) > 1 else {},
               read=lambda document, ranks: {setting: int(document.get(key, 1))})  # fmt: skip


def _read_adam(document: Document, ranks: int) -> dict[str, Any]:
    """As given; else what ``default_adamw`` takes."""
    if not any(key.startswith("optimizer.") for key in document):
        return {}
    betas = learning.read_betas("optimizer.betas", document.get("optimizer.betas", [0.9, 0.95]))
    return betas | {"train.epsilon": document.get("optimizer.eps", 1e-8)}


def _schedule(values: Values) -> Document:
    """A recipe may have a part of the steps in which the rate stays: there is none here."""
    kind = learning.kind_of(values)
    if kind == learning.CONSTANT:
        return {f"{_L}min_lr_factor": 1.0}
    return {f"{_L}decay_type": kind, f"{_L}min_lr_factor": values["train.learning_rate_floor"],
            f"{_L}decay_ratio": None}  # fmt: skip


def _read_schedule(document: Document, ranks: int) -> dict[str, Any]:
    kind = str(document.get(f"{_L}decay_type"))
    kind = learning.CONSTANT if document.get(f"{_L}decay_ratio") == 0 else kind
    if kind not in learning.RATE_SCHEDULES:
        return {}
    floor, steps = document.get(f"{_L}min_lr_factor", 0.0), document.get(f"{_T}steps")
    return learning.read_fall(kind, floor, steps, document.get(f"{_L}warmup_steps", 0))


def _shares(values: Values) -> bool:
    return _stage(values) > 0


ROWS = add_common_rows((
    Row("data.sequence_length", Level.EXPRESSED, (f"{_T}seq_len",),
        write=lambda values: {f"{_T}seq_len": values["data.sequence_length"]},
        read=lambda document, ranks: {"data.sequence_length": document[f"{_T}seq_len"]}),
    Row("parallel.dp", Level.EXPRESSED, (f"{_P}data_parallel_shard_degree", f"{_P}data_parallel_replicate_degree"),
        "their product", write=_sharding, read=_read_sharding),
    _degree_row("parallel.tp", f"{_P}tensor_parallel_degree"),
    Row("parallel.pp", Level.EXPRESSED, (f"{_P}pipeline_parallel_degree", f"{_T}disable_cuda_graphs"),
        write=_pipeline, read=_read_pipeline),
    _degree_row("parallel.cp", f"{_P}context_parallel_degree"),
    _degree_row("parallel.ep", f"{_P}expert_parallel_degree"),
    drop("parallel.cp_method", "its context parallelism is a ring", "measure with ring"),
    Row("parallel.zero_stage", Level.EQUIVALENT, (f"{_P}fsdp_reshard_after_forward",),
        "2 and 3 are FSDP2 that never and always reshards; 1 becomes 2, and beside cp there is FSDP2 alone",
        "stage 1: export to deepspeed or megatron",
        accepts=lambda values: _stage(values) == values["parallel.zero_stage"]),
    Row("parallel.shard_ranks", Level.EXPRESSED, (f"{_P}data_parallel_shard_degree",),
        "over whole cp groups, more than one",
        accepts=lambda values: values["parallel.shard_ranks"] is None or _hybrid(values)),
    Row("batch.micro_batch", Level.EXPRESSED, (f"{_T}local_batch_size", f"{_PIPE}microbatch_size"),
        "of a pipeline the second, and the first is all that a rank accumulates", write=_batch, read=_read_batch),
    Row("batch.global_batch", Level.EXPRESSED, (f"{_T}global_batch_size",)),
    Row("schedule.kind", Level.EXPRESSED, (f"{_PIPE}schedule",),
        "1f1b, gpipe, and interleaved where layers and micro-batches divide", "others become 1f1b",
        accepts=_supports_schedule),
    Row("schedule.chunks", Level.EQUIVALENT, (f"{_PIPE}layers_per_stage", f"{_PIPE}first_stage_less_layers",
                                              f"{_PIPE}last_stage_less_layers"),
        "as layers of a stage, which a file without the model does not turn back", "say it beside an import",
        accepts=lambda values: values["schedule.chunks"] == 1),
    drop("schedule.stage_layers", "stages are dealt evenly but for the first and the last", "export to megatron"),
    Row("memory.recompute", Level.EQUIVALENT, ("activation_checkpoint",),
        "selective keeps what it thinks dear, by operator",
        write=lambda values: {"activation_checkpoint": values["memory.recompute"]},
        read=lambda document, ranks: {"memory.recompute": document.get("activation_checkpoint", "none")}),
    Row("memory.offload", Level.EXPRESSED, (f"{_T}enable_cpu_offload",), "optimizer, under FSDP2 alone",
        write=lambda values: {f"{_T}enable_cpu_offload": True}
        if values["memory.offload"] in ("optimizer", "both") and _shares(values) else {},
        read=lambda document, ranks: {"memory.offload": "optimizer"} if document.get(f"{_T}enable_cpu_offload") else {},
        accepts=lambda values: values["memory.offload"] == "none"
        or (values["memory.offload"] == "optimizer" and _shares(values))),
    Row("precision", Level.EXPRESSED, (f"{_T}mixed_precision_param", f"{_T}dtype"),
        write=lambda values: {f"{_T}mixed_precision_param": "bfloat16" if values["precision"] == "bf16" else "float32",
                              f"{_T}dtype": "float32"},
        read=lambda document, ranks: {
            "precision": "bf16" if document[f"{_T}mixed_precision_param"] == "bfloat16" else "fp32"}),
    drop("memory.parameters", "its bf16 weights have no fp32 copy", "measure with fp32 weights"),
    convert_row("compile", "compile.enable", bool, bool),
    same("train.steps", f"{_T}steps"),
    same("train.seed", "debug.seed"),
    convert_row("train.clip_norm", f"{_T}max_norm", lambda norm: norm or 1e9,
                  lambda norm: norm if norm < 1e9 else None),
    Row("train.learning_rate", Level.EXPRESSED, ("optimizer.lr",),
        write=lambda values: {"optimizer.lr": values["train.learning_rate"],
                              "optimizer.betas": [values.get("train.beta1", 0.9), values.get("train.beta2", 0.999)],
                              "optimizer.eps": values.get("train.epsilon", 1e-8)},
        read=lambda document, ranks: {"train.learning_rate": document["optimizer.lr"]}
        if "optimizer.lr" in document else {}),
    drop("train.optimizer", "default_adamw is AdamW; its Muon needs groups of weights by their names",
         "set config.optimizer in the recipe"),
    Row("train.beta1", Level.EXPRESSED, ("optimizer.betas",), read=_read_adam),
    Row("train.beta2", Level.EXPRESSED, ("optimizer.betas",)),
    Row("train.epsilon", Level.EXPRESSED, ("optimizer.eps",)),
    Row("train.weight_decay", Level.EQUIVALENT, ("optimizer.weight_decay",), "norms decay, too",
        write=lambda values: {"optimizer.weight_decay": values["train.weight_decay"]},
        read=lambda document, ranks: {"train.weight_decay": document["optimizer.weight_decay"]}
        if "optimizer.weight_decay" in document else {}),
    same("train.learning_rate_warmup", "lr_scheduler.warmup_steps"),
    Row("train.learning_rate_schedule", Level.EXPRESSED,
        ("lr_scheduler.decay_type", "lr_scheduler.decay_ratio"), "from the end of the warm-up on",
        write=_schedule, read=_read_schedule, accepts=learning.kind_arrives),
    Row("train.learning_rate_floor", Level.EXPRESSED, ("lr_scheduler.min_lr_factor",),
        accepts=lambda values: values["train.learning_rate_floor"] < 1),
    Row("train.validate_every", Level.EXPRESSED, ("validator.enable", "validator.freq", "validator.steps"),
        write=lambda values: {"validator.enable": True, "validator.freq": values["train.validate_every"],
                              "validator.steps": values["train.validation_batches"]}
        if values["train.validate_every"] else {"validator.enable": False},
        read=lambda document, ranks: {"train.validate_every": document["validator.freq"],
                                      "train.validation_batches": document.get("validator.steps", 1)}
        if document.get("validator.enable") else {}),
    Row("train.validation_batches", Level.EXPRESSED, ("validator.steps",), "where it validates while it trains",
        accepts=lambda values: bool(values["train.validate_every"]) or values["train.validation_batches"] == 1),
    Row("checkpoint.every_steps", Level.EXPRESSED, ("checkpoint.enable", "checkpoint.interval"),
        write=lambda values: {"checkpoint.enable": True, "checkpoint.interval": values["checkpoint.every_steps"]}
        if values["checkpoint.every_steps"] else {"checkpoint.enable": False},
        read=lambda document, ranks: {"checkpoint.every_steps": document["checkpoint.interval"]}
        if document.get("checkpoint.enable") else {}),
))  # fmt: skip


def text(document: Document) -> str:
    """The recipe."""
    lines, adamw = [], {}
    for key, value in document.items():
        if key.startswith("optimizer."):
            adamw[key.partition(".")[2]] = tuple(value) if isinstance(value, list) else value
        elif key == "activation_checkpoint":
            function_name = next((call for call, (_, name) in CALLS.items() if name == value), None)
            lines.append(f"config.{key} = {f'{function_name}()' if function_name else None}")
        else:
            lines.append(f"config.{key} = {value!r}")
    if adamw:
        lines.append(
            f"config.optimizer = {_ADAMW}({', '.join(f'{key}={value!r}' for key, value in adamw.items())})"
        )
    return _HEAD + "".join(f"    {line}\n" for line in lines) + "    return config\n"


def read(source: str) -> Document:
    """What a recipe assigns, read as text; or torchtitan's flags, one or more a line. Nothing in it runs.

    Raises:
        InputError: it is no Python, or assigns what is no plain value.
    """
    if source.lstrip().startswith("--"):
        return _flags(source)
    if _is_toml(source):
        remedy = (
            "is TOML, which torchtitan reads up to release 0.2; give a recipe of 0.3, or tune the command as it is: "
            "workbench tune --command 'torchrun -m torchtitan.train --job.config_file FILE'"
        )
        raise InputError("file", None, remedy)
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise InputError("file", None, f"is not a recipe in Python ({error})") from None
    document = Document()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and (key := _path(node.targets[0])):
            document |= _read_assignment(key, node.value)
    if not document:
        raise InputError(
            "file", None, "sets nothing; give a recipe with lines such as config.training.steps = 100"
        )
    return document


def _is_toml(source: str) -> bool:
    try:
        return not {"training", "parallelism", "job"}.isdisjoint(tomllib.loads(source))
    except ValueError:
        return False


def _path(node: ast.expr) -> str:
    """``config.training.steps`` as training.steps; empty of any other target."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed(parts)) if isinstance(node, ast.Name) else ""


def _read_assignment(key: str, value: ast.expr) -> Document:
    if isinstance(value, ast.Call):
        function_name = _path(value.func) or getattr(value.func, "id", "")
        name = ast.unparse(value.func)
        if name in CALLS:
            return {CALLS[name][0]: CALLS[name][1]}
        if function_name == _ADAMW:
            return {
                f"optimizer.{keyword.arg}": _plain(f"optimizer.{keyword.arg}", keyword.value)
                for keyword in value.keywords
            }
        return {key: ast.unparse(value)}
    if key == "activation_checkpoint":
        return {key: "none"}
    return {key: _plain(key, value)}


def _plain(key: str, node: ast.expr) -> Any:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise InputError(
            key, ast.unparse(node), "is computed, and a recipe is not run; write its value"
        ) from None
    return list(value) if isinstance(value, tuple) else value


def _flags(source: str) -> Document:
    words, document, place = source.split(), Document(), 0
    while place < len(words):
        key, equals, remainder = words[place].removeprefix("--").partition("=")
        place += 1
        if not equals and place < len(words) and not words[place].startswith("--"):
            remainder, equals, place = words[place], "=", place + 1
        try:
            document[key] = ast.literal_eval(remainder) if equals else True
        except (ValueError, SyntaxError):
            document[key] = {"true": True, "false": False}.get(remainder.lower(), remainder)
    return document


def problems(document: Document, ranks: int) -> Iterator[InputError]:
    """What torchtitan's parser lets through although it is wrong."""
    yield from documents.unknown_keys("torchtitan", document)
    yield from documents.positive(document, *(f"{_P}{name}_parallel_degree" for name in
                                  ("tensor", "pipeline", "context", "expert")), f"{_T}local_batch_size")  # fmt: skip
    tp, pp, cp, ep = (_degree(document, name) for name in ("tensor", "pipeline", "context", "expert"))
    if ranks and ranks % (tp * pp * cp):
        yield InputError(
            f"{_P}tensor_parallel_degree",
            tp,
            f"x pipeline x context = {tp * pp * cp} must divide {ranks} ranks",
        )
        return
    dp = _read_sharding(document, ranks or tp * pp * cp)["parallel.dp"]
    whole = int(document.get(f"{_T}global_batch_size", -1))
    samples_per_pass = int(document.get(f"{_T}local_batch_size", 1)) * dp
    if ranks and whole > 0 and whole % samples_per_pass:
        yield InputError(
            f"{_T}global_batch_size",
            whole,
            f"local_batch_size x {dp} data ranks = {samples_per_pass} must divide it",
        )
    if ranks and ep > 1 and (dp * cp * tp) % ep:
        yield InputError(f"{_P}expert_parallel_degree", ep, f"must divide dp x cp x tp = {dp * cp * tp}")


TORCHTITAN = Format(
    name="torchtitan",
    title="torchtitan: a recipe",
    file="recipe.py",
    rows=ROWS,
    degrees=only("tp", "pp", "cp", "ep"),
    text=text,
    document=read,
    problems=problems,
    partly=(f"{_L}decay_type", f"{_L}decay_ratio", f"{_PIPE}schedule"),
    launch=Launch(
        "torchtitan",
        "[its other options]",
        "",
        torchrun_command(
            '-m torchtitan.train --module recipe --config exported "$@"',
            'export PYTHONPATH="$HERE${PYTHONPATH:+:$PYTHONPATH}"\n',
        ),
    ),
    test_evidence={"parsed": "by torchtitan 0.3.0", "trained": "FSDP2 and tensor parallel on two CPU ranks"},
    own_suffixes=(".py", ".toml"),
)
