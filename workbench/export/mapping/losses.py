"""Settings that most public trainers have no key for: why, and what to do about it.

A format's own rows come first; ``add_common_rows`` adds these for what they do not name. A setting that nobody names is
a technique of this project's engine: it is lost wherever it does not stand as it usually does.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.config.run_config import RunConfig
from workbench.export.mapping.rows import Level, Row, lost

#: The files of hooks, by what they stand for.
GRADIENT_HOOK, OUTER_HOOK = "gradient_hook.py", "outer_loop.py"
_SCRIPT = "the training script decides it, not this file"
_OURS = "is of this project's launcher and recorder, and changes nothing that is trained"
_SEARCHED = "a technique of this project's engine"


def _model(setting: str) -> Row:
    return lost(setting, "the training script builds the model", "build it with this size", always=True)


#: In the configuration's order. Globs cover what is lost as one.
_NAMED: tuple[Row, ...] = (
    *(_model(f"model.{name}") for name in
      ("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocabulary")),
    lost("model.preset", "is a name for sizes", "its sizes stand under model.*"),
    *(_model(f"model.{name}") for name in
      ("experts", "experts_per_token", "expert_ffn_hidden", "capacity_factor", "balance_weight")),
    lost("model.workload", "is a model of this project's engine", "build this model in the training script"),
    lost("model.options", "is a model of this project's engine", "build this model in the training script"),
    lost("model.tied_embeddings", "the training script builds the model", "make its head the embedding's matrix there"),
    lost("model.layer_groups", "layers there have parameters of their own", "share them in the script's model"),
    lost("data.path", "the training script reads the text", "name this text there"),
    lost("data.tasks", "the training script reads the text", "mix these texts there, in these shares"),
    lost("data.ahead", "the training script makes the batches", "give its DataLoader workers and a prefetch_factor"),
    lost("data.documents", "the training script cuts the text",
         "mask attention between documents there; if they are whole, batch.global_batch counts documents"),
    lost("data.longest_document", "the training script cuts the text", "cut documents at this many tokens there"),
    lost("data.sequence_length", "the training script cuts the text", "cut it to this many tokens", always=True),
    lost("data.held_out_fraction", "the training script splits the text", "hold out this part there"),
    lost("parallel.dp", _SCRIPT),
    lost("parallel.tp", "this trainer splits no matrices", "export to megatron, torchtitan or automodel"),
    lost("parallel.pp", "this trainer has no pipeline", "export to megatron or torchtitan"),
    lost("parallel.cp", "this trainer splits no sequences", "export to megatron or torchtitan"),
    lost("parallel.ep", "this trainer spreads no experts", "export to megatron or torchtitan"),
    lost("parallel.cp_method", "this trainer has one way to split sequences"),
    lost("parallel.zero_stage", "this trainer shares no optimizer", "export to deepspeed"),
    lost("parallel.shard_ranks", "this trainer shards over all data ranks", "export to torchtitan or accelerate"),
    lost("parallel.tp_regather", _SEARCHED),
    lost("parallel.tp_replicated", _SEARCHED),
    lost("parallel.embedding", _SEARCHED),
    lost("parallel.ep_island", _SEARCHED),
    lost("parallel.task_ranks", _SEARCHED),
    lost("parallel.sequence_groups", _SEARCHED),
    lost("parallel.reduce_every_micro_batch", "this trainer decides when gradients are reduced"),
    lost("parallel.placement", "no key says on which device a rank works",
         "name hosts and devices in that order in the launcher's host file or rank file"),
    lost("network.*", "no key says over which network each group sends",
         "give groups made in the script NCCL's net_name, or gloo's interface"),
    lost("parallel.world_size", "is the launcher's", "run.sh starts as many ranks"),
    lost("batch.micro_batch", _SCRIPT, "give it to the data loader", always=True),
    lost("batch.global_batch", _SCRIPT, "accumulate so many sequences a step", always=True),
    lost("batch.ramp_from", "a batch stays as it is", "begin with so many sequences a step"),
    lost("batch.ramp_share", "a batch stays as it is", "let it grow over this share of the steps"),
    lost("schedule.kind", "this trainer has no such schedule", "export to megatron or torchtitan"),
    lost("schedule.chunks", "this trainer has one stage a rank", "export to megatron or torchtitan"),
    lost("schedule.stage_layers", "this trainer deals layers itself", "export to megatron"),
    lost("schedule.skip_share", "this trainer's pipelines have all stages",
         "this changes what is learned: measure without it"),
    lost("schedule.skip_order", "goes with schedule.skip_share", "see there"),
    lost("schedule.registers", "this trainer decides how far stages run ahead"),
    lost("compression.method", "compression of gradients is Python in every trainer",
         f"{GRADIENT_HOOK} has it for DistributedDataParallel", hook=GRADIENT_HOOK),
    lost("compression.weights", "this trainer gathers weights as they are", "export to deepspeed (ZeRO++)"),
    lost("compression.experts", _SEARCHED),
    lost("compression.expert_rate", "goes with compression.experts", "see there"),
    lost("compression.expert_residual", "goes with compression.experts", "see there"),
    lost("compression.*", "goes with compression.method", f"see {GRADIENT_HOOK}", hook=GRADIENT_HOOK),
    lost("outer.*", "an outer loop is Python in every trainer", f"{OUTER_HOOK} shows where it goes",
         hook=OUTER_HOOK),
    lost("overlap.bucket_mb", "this trainer has no bucket size here", "give bucket_cap_mb to DistributedDataParallel"),
    lost("overlap.fused_gathers", "this trainer decides how it gathers"),
    lost("overlap.prefetch", "this trainer decides how far ahead it gathers"),
    lost("overlap.gather_with_optimizer", _SEARCHED),
    lost("overlap.tp_chunks", _SEARCHED),
    lost("overlap.delay", _SEARCHED, "this changes what is learned: measure without it"),
    lost("memory.recompute", "the model decides what it recomputes", "wrap its layers in torch.utils.checkpoint"),
    lost("memory.recompute_layers", "the model decides which layers recompute"),
    lost("memory.block_actions", "this trainer treats all blocks alike", "export another setting of memory.recompute"),
    lost("memory.budget_gib", "a plan is made by this project's engine as a run starts",
         "read what it chose in the run, and set memory.recompute to what is nearest"),
    lost("memory.expert_slots", _SEARCHED),
    lost("memory.expert_ahead", _SEARCHED),
    lost("memory.expert_home", _SEARCHED),
    lost("memory.sample_tokens", _SEARCHED, "this changes what is learned: measure without it"),
    lost("memory.offload", "this trainer offloads nothing here"),
    lost("memory.parameters", "the training script makes the weights", "make them in this precision"),
    lost("memory.limit_gib", _OURS),
    lost("precision", _SCRIPT, "use autocast to this precision"),
    lost("compile", _SCRIPT, "call torch.compile on the model"),
    lost("device", _SCRIPT, "it works on a GPU where there is one"),
    lost("train.steps", _SCRIPT, "stop after as many", always=True),
    lost("train.seed", _SCRIPT, "seed it there", always=True),
    lost("train.learning_rate", _SCRIPT, "give it to AdamW", always=True),
    lost("train.learning_rate_warmup", _SCRIPT, "let it rise over these steps"),
    lost("train.learning_rate_schedule", _SCRIPT, "let it fall there"),
    lost("train.learning_rate_floor", "goes with train.learning_rate_schedule", "see there"),
    *(lost(f"train.{name}", "the learning rate is written as it comes to")
      for name in ("learning_rate_scaling", "learning_rate_batch")),
    lost("train.trust", "goes with train.optimizer", "see there"),
    lost("train.optimizer", _SCRIPT, "make it there"),
    *(lost(f"train.{name}", "goes with train.optimizer", "see there")
      for name in ("beta1", "beta2", "epsilon", "momentum")),
    lost("train.slice_keep", _SEARCHED, "this changes what is learned: measure without it"),
    lost("train.adapt", "this trainer trains everything, from the beginning",
         "wrap the model in another library's adapters"),
    lost("train.adapt_rank", "goes with train.adapt", "see there"),
    lost("train.clip_value", "this trainer clips by the norm alone", "clip values in the training script"),
    lost("train.weight_decay", _SCRIPT, "give it to AdamW", always=True),
    lost("train.clip_norm", _SCRIPT, "clip gradients to it", always=True),
    lost("train.validation_batches", _SCRIPT),
    lost("train.validate_every", _SCRIPT, "evaluate there"),
    lost("train.seconds", "a run there ends after its steps", "give the number of steps that fitted"),
    lost("train.resume", "an export starts from the beginning", "convert the checkpoint by hand"),
    *(lost(f"train.{name}", _OURS) for name in ("warmup", "timeout_seconds", "step_timeout_seconds")),
    lost("checkpoint.asynchronous", "this trainer decides how it writes"),
    lost("checkpoint.every_steps", _SCRIPT, "save there"),
    lost("checkpoint.keep", "this trainer keeps all that it saves, or as many as it is told elsewhere"),
    lost("lab.*", _OURS),
    Row("environment.*", Level.EXPRESSED, ("run.sh",), "run.sh exports it"),
    lost("profile.*", _OURS),
    lost("tokens_told", "is of a trainer that is not this project's"),
)  # fmt: skip


def uncovered_rows(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Rows of the settings of a run that none of these is about."""
    named = tuple(rows)
    others = (setting for setting in RunConfig().flat() if not any(row.covers(setting) for row in named))
    return tuple(lost(setting, _SEARCHED) for setting in others)


COMMON: tuple[Row, ...] = (*_NAMED, *uncovered_rows(_NAMED))


def add_common_rows(rows: Iterable[Row]) -> tuple[Row, ...]:
    """A format's rows, then those of ``COMMON`` about settings that it does not name itself."""
    own = tuple(rows)
    named = {row.setting for row in own}
    return own + tuple(row for row in COMMON if row.setting not in named)


def settings() -> list[str]:
    """The settings and globs that a matrix has a line for: every setting of a run is covered by one."""
    return [row.setting for row in COMMON]
