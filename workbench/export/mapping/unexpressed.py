"""Settings that most public trainers have no key for: why, and what to do about it.

A format's own rows come first; ``add_common_rows`` adds these for what they do not name. A setting that nobody names is
a technique of this project's engine: it is lost wherever it does not stand as it usually does.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.config.run_config import RunConfig
from workbench.export.mapping.rows import Level, Row, drop

#: The files of hooks, by what they stand for.
GRADIENT_HOOK, OUTER_HOOK = "gradient_hook.py", "outer_loop.py"
_SCRIPT = "the training script decides it, not this file"
_OURS = "is of this project's launcher and recorder, and changes nothing that is trained"
_SEARCHED = "a technique of this project's engine"


def _model(setting: str) -> Row:
    return drop(setting, "the training script builds the model", "build it with this size", always=True)


#: In the configuration's order. Globs cover what is lost as one.
_NAMED: tuple[Row, ...] = (
    *(_model(f"model.{name}") for name in
      ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocabulary")),
    drop("model.preset", "is a name for sizes", "its sizes stand under model.*"),
    *(_model(f"model.{name}") for name in
      ("experts", "experts_per_token", "expert_ffn_hidden", "capacity_factor", "balance_weight")),
    drop("model.workload", "is a model of this project's engine", "build this model in the training script"),
    drop("model.options", "is a model of this project's engine", "build this model in the training script"),
    drop("model.tied_embeddings", "the training script builds the model", "make its head the embedding's matrix there"),
    drop("model.layer_groups", "layers there have parameters of their own", "share them in the script's model"),
    drop("data.path", "the training script reads the text", "name this text there"),
    drop("data.tasks", "the training script reads the text", "mix these texts there, in these shares"),
    drop("data.ahead", "the training script makes the batches", "give its DataLoader workers and a prefetch_factor"),
    drop("data.documents", "the training script cuts the text",
         "mask attention between documents there; if they are whole, batch.global_batch counts documents"),
    drop("data.longest_document", "the training script cuts the text", "cut documents at this many tokens there"),
    drop("data.sequence_length", "the training script cuts the text", "cut it to this many tokens", always=True),
    drop("data.held_out_fraction", "the training script splits the text", "hold out this part there"),
    drop("parallel.dp", _SCRIPT),
    drop("parallel.tp", "this trainer splits no matrices", "export to megatron, torchtitan or automodel"),
    drop("parallel.pp", "this trainer has no pipeline", "export to megatron or torchtitan"),
    drop("parallel.cp", "this trainer splits no sequences", "export to megatron or torchtitan"),
    drop("parallel.ep", "this trainer spreads no experts", "export to megatron or torchtitan"),
    drop("parallel.cp_method", "this trainer has one way to split sequences"),
    drop("parallel.zero_stage", "this trainer shares no optimizer", "export to deepspeed"),
    drop("parallel.shard_ranks", "this trainer shards over all data ranks", "export to torchtitan or accelerate"),
    drop("parallel.tp_regather", _SEARCHED),
    drop("parallel.tp_replicated", _SEARCHED),
    drop("parallel.embedding", _SEARCHED),
    drop("parallel.ep_island", _SEARCHED),
    drop("parallel.task_ranks", _SEARCHED),
    drop("parallel.sequence_groups", _SEARCHED),
    drop("parallel.reduce_every_micro_batch", "this trainer decides when gradients are reduced"),
    drop("parallel.placement", "no key says on which device a rank works",
         "name hosts and devices in that order in the launcher's host file or rank file"),
    drop("network.*", "no key says over which network each group sends",
         "give groups made in the script NCCL's net_name, or gloo's interface"),
    drop("parallel.world_size", "is the launcher's", "run.sh starts as many ranks"),
    drop("batch.micro_batch", _SCRIPT, "give it to the data loader", always=True),
    drop("batch.global_batch", _SCRIPT, "accumulate so many sequences a step", always=True),
    drop("batch.ramp_from", "a batch stays as it is", "begin with so many sequences a step"),
    drop("batch.ramp_share", "a batch stays as it is", "let it grow over this share of the steps"),
    drop("schedule.kind", "this trainer has no such schedule", "export to megatron or torchtitan"),
    drop("schedule.chunks", "this trainer has one stage a rank", "export to megatron or torchtitan"),
    drop("schedule.stage_layers", "this trainer deals layers itself", "export to megatron"),
    drop("schedule.skip_share", "this trainer's pipelines have all stages",
         "this changes what is learned: measure without it"),
    drop("schedule.skip_order", "goes with schedule.skip_share", "see there"),
    drop("schedule.registers", "this trainer decides how far stages run ahead"),
    drop("compression.method", "compression of gradients is Python in every trainer",
         f"{GRADIENT_HOOK} has it for DistributedDataParallel", hook=GRADIENT_HOOK),
    drop("compression.weights", "this trainer gathers weights as they are", "export to deepspeed (ZeRO++)"),
    drop("compression.experts", _SEARCHED),
    drop("compression.expert_rate", "goes with compression.experts", "see there"),
    drop("compression.expert_residual", "goes with compression.experts", "see there"),
    drop("compression.*", "goes with compression.method", f"see {GRADIENT_HOOK}", hook=GRADIENT_HOOK),
    drop("outer.*", "an outer loop is Python in every trainer", f"{OUTER_HOOK} shows where it goes",
         hook=OUTER_HOOK),
    drop("overlap.bucket_mb", "this trainer has no bucket size here", "give bucket_cap_mb to DistributedDataParallel"),
    drop("overlap.fused_gathers", "this trainer decides how it gathers"),
    drop("overlap.prefetch", "this trainer decides how far ahead it gathers"),
    drop("overlap.gather_with_optimizer", _SEARCHED),
    drop("overlap.tp_chunks", _SEARCHED),
    drop("overlap.delay", _SEARCHED, "this changes what is learned: measure without it"),
    drop("memory.recompute", "the model decides what it recomputes", "wrap its layers in torch.utils.checkpoint"),
    drop("memory.recompute_layers", "the model decides which layers recompute"),
    drop("memory.block_actions", "this trainer treats all blocks alike", "export another setting of memory.recompute"),
    drop("memory.budget_gib", "a plan is made by this project's engine as a run starts",
         "read what it chose in the run, and set memory.recompute to what is nearest"),
    drop("memory.expert_slots", _SEARCHED),
    drop("memory.expert_ahead", _SEARCHED),
    drop("memory.expert_home", _SEARCHED),
    drop("memory.sample_tokens", _SEARCHED, "this changes what is learned: measure without it"),
    drop("memory.offload", "this trainer offloads nothing here"),
    drop("memory.parameters", "the training script makes the weights", "make them in this precision"),
    drop("memory.limit_gib", _OURS),
    drop("precision", _SCRIPT, "use autocast to this precision"),
    drop("compile", _SCRIPT, "call torch.compile on the model"),
    drop("device", _SCRIPT, "it works on a GPU where there is one"),
    drop("train.steps", _SCRIPT, "stop after as many", always=True),
    drop("train.seed", _SCRIPT, "seed it there", always=True),
    drop("train.learning_rate", _SCRIPT, "give it to AdamW", always=True),
    drop("train.learning_rate_warmup", _SCRIPT, "let it rise over these steps"),
    drop("train.learning_rate_schedule", _SCRIPT, "let it fall there"),
    drop("train.learning_rate_floor", "goes with train.learning_rate_schedule", "see there"),
    *(drop(f"train.{name}", "the learning rate is written as it comes to")
      for name in ("learning_rate_scaling", "learning_rate_batch")),
    drop("train.trust", "goes with train.optimizer", "see there"),
    drop("train.optimizer", _SCRIPT, "make it there"),
    *(drop(f"train.{name}", "goes with train.optimizer", "see there")
      for name in ("beta1", "beta2", "epsilon", "momentum")),
    drop("train.slice_keep", _SEARCHED, "this changes what is learned: measure without it"),
    drop("train.adapt", "this trainer trains everything, from the beginning",
         "wrap the model in another library's adapters"),
    drop("train.adapt_rank", "goes with train.adapt", "see there"),
    drop("train.clip_value", "this trainer clips by the norm alone", "clip values in the training script"),
    drop("train.weight_decay", _SCRIPT, "give it to AdamW", always=True),
    drop("train.clip_norm", _SCRIPT, "clip gradients to it", always=True),
    drop("train.validation_batches", _SCRIPT),
    drop("train.validate_every", _SCRIPT, "evaluate there"),
    drop("train.seconds", "a run there ends after its steps", "give the number of steps that fitted"),
    drop("train.resume", "an export starts from the beginning", "convert the checkpoint by hand"),
    *(drop(f"train.{name}", _OURS) for name in ("warmup", "timeout_seconds", "step_timeout_seconds")),
    drop("checkpoint.asynchronous", "this trainer decides how it writes"),
    drop("checkpoint.every_steps", _SCRIPT, "save there"),
    drop("checkpoint.keep", "this trainer keeps all that it saves, or as many as it is told elsewhere"),
    drop("lab.*", _OURS),
    Row("environment.*", Level.EXPRESSED, ("run.sh",), "run.sh exports it"),
    drop("profile.*", _OURS),
    drop("tokens_told", "is of a trainer that is not this project's"),
)  # fmt: skip


def uncovered_rows(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Rows of the settings of a run that none of these is about."""
    named = tuple(rows)
    others = (setting for setting in RunConfig().flat() if not any(row.covers(setting) for row in named))
    return tuple(drop(setting, _SEARCHED) for setting in others)


COMMON: tuple[Row, ...] = (*_NAMED, *uncovered_rows(_NAMED))


def add_common_rows(rows: Iterable[Row]) -> tuple[Row, ...]:
    """A format's rows, then those of ``COMMON`` about settings that it does not name itself."""
    own_rows = tuple(rows)
    named = {row.setting for row in own_rows}
    return own_rows + tuple(row for row in COMMON if row.setting not in named)


def settings() -> list[str]:
    """The settings and globs that a matrix has a line for: every setting of a run is covered by one."""
    return [row.setting for row in COMMON]
