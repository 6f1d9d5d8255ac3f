"""Megatron-LM, whose options these are in release 0.19 of its core."""

from __future__ import annotations

from collections.abc import Mapping

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
    puts,
    switch,
)
from tuning.spec.trainers.invocation import Invocation
from tuning.spec.trainers.kinds.any_trainer import NUMBER


def _megatron_batch(today: Invocation, values: Mapping[str, Value]) -> str:
    whole = today.number("--global-batch-size")
    size = count(values.get("micro_batch", today.number("--micro-batch-size") or 1))
    data = today.ranks // _megatron_model_ranks(today, values)
    if whole and data and whole % (size * data):
        return f"--global-batch-size {whole} is no multiple of {size} x {data} data ranks"
    return ""


def _megatron_model_ranks(today: Invocation, values: Mapping[str, Value]) -> int:
    tp = count(values.get("tensor_parallel", today.number(_TP) or 1))
    pp = count(values.get("pipeline_parallel", today.number(_PP) or 1))
    return tp * pp * (today.number("--context-parallel-size") or 1)


def _megatron_world(today: Invocation, values: Mapping[str, Value]) -> str:
    ranks = _megatron_model_ranks(today, values)
    if today.ranks % ranks:
        return f"{today.ranks} ranks are no multiple of the {ranks} that hold one model"
    for option, name in (("--num-attention-heads", "tensor_parallel"), ("--num-layers", "pipeline_parallel")):
        whole, degree = today.number(option), count(values.get(name, 1))
        if whole and whole % degree:
            return f"{option} {whole} is no multiple of {degree}"
    return ""


def _needs_tensor_parallel(today: Invocation, values: Mapping[str, Value]) -> str:
    tp = count(values.get("tensor_parallel", today.number(_TP) or 1))
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
    plain = command.remove_option("--recompute-granularity").remove_option("--recompute-method")
    plain = plain.remove_option("--recompute-num-layers")
    if value == "none":
        return plain
    chosen = plain.with_value("--recompute-granularity", value)
    if value != "full":
        return chosen
    return chosen.with_value("--recompute-method", "uniform").with_value("--recompute-num-layers", 1)


def _megatron_tokens(command: Invocation) -> Tokens:
    return command.number("--global-batch-size"), command.number("--seq-length")


_TP, _PP = "--tensor-model-parallel-size", "--pipeline-model-parallel-size"
MEGATRON = TrainerKind(
    "megatron",
    "Megatron-LM",
    knows=lambda command: command.has(_TP) or (command.has("--micro-batch-size") and command.has("--num-layers")),
    lines=(
        line(
            r"iteration\s+(?P<step>\d+)/\s*(?P<total>\d+)\s*\|.*elapsed time per iteration \(ms\):\s*(?P<ms>[\d.]+)"
            rf"(?:.*?\blm loss:\s*(?P<loss>{NUMBER}))?"
        ),
    ),
    arguments=(
        Argument(
            "micro_batch",
            "larger: fuller kernels, more activations",
            flag("--micro-batch-size", 1),
            puts("--micro-batch-size"),
            lambda command, cores: nearest_values(
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
    for_trials=lambda command: command.with_value("--log-interval", 1).remove_option("--save"),
    tokens=_megatron_tokens,
)  # fmt: skip
