"""Compression methods by the names that configurations use, and what each of them asks for. Pure, without torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

#: A ratio, a number of bits or a rank; None leaves a part alone.
Value = float | int | None
#: Fields of the section ``compression`` that act with a method, by name.
Parameters: TypeAlias = Mapping[str, float | int | bool | str | None]

FP32_BYTES, FLOAT64_BYTES = 4, 8
#: Bits that integers can have.
MIN_BITS, MAX_BITS = 2, 8
#: Steps of a ratio between the half and the double, each 2^(1/8) of the last one.
_STEPS_OF_A_DOUBLING = 8


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter whose gradient may be compressed, and how: by a method's value, with the ``parameters`` that its
    entry names in ``fields``.
    """

    shape: tuple[int, ...]
    value: float
    parameters: Parameters = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


class WireInputs(NamedTuple):
    """What the bytes of a gradient depend on: a method's value, how many ranks share the gradient, and ``factors``:
    rows and columns of all matrices over their values. ``parameters``: those that its entry names in ``fields``.
    """

    value: float
    ranks: int
    factors: float
    parameters: Parameters = MappingProxyType({})


@dataclass(frozen=True)
class LayerValue:
    """A value that parameters can have of their own and a plan can choose: its ``unit``, what is wrong with one ("" if
    nothing is), and which others a plan tries around the usual one.
    """

    unit: str
    problem: Callable[[float], str]
    candidates: Callable[[float], list[Value]]


@dataclass(frozen=True)
class TorchHook:
    """The hook of DistributedDataParallel with which torch itself does the same: ``name`` in ``module`` of
    ``torch.distributed.algorithms.ddp_comm_hooks``.

    ``state`` is the Python expression that it is registered with; fields of the section ``compression`` stand in it in
    braces, of which ``{start_step}`` is at least ``earliest_start``. With ``gpu_only`` torch refuses it on CPUs.
    """

    module: str
    name: str
    state: str = "dist.group.WORLD"
    earliest_start: int = 0
    gpu_only: bool = False


@dataclass(frozen=True)
class CompressionMethod:
    """Facts about a method; its code is in a module of its own."""

    #: Its arXiv number; empty without a paper.
    paper: str
    #: The module that has its code.
    module: str
    #: The function there that makes a bucket's ``Method`` (``engine/compression/interface.py``).
    build: str
    #: The field of the section ``compression`` that holds its usual value, or that value itself.
    value: str | int
    #: S, in bytes per gradient value, so that of n ranks each sends 2 (n - 1) / n x S, as in a ring all-reduce.
    wire_bytes: Callable[[WireInputs], float]
    #: Bytes per gradient value that its messages and its state take on a rank. Not used under ZeRO: there a rank holds
    #: what it sends, and as much again that it receives.
    message_bytes: Callable[[WireInputs], float]
    #: The value that a plan may choose for each layer; None: no plan chooses.
    layer_value: LayerValue | None = None
    #: The ``LayerErrors`` in its module that tells what each such value would lose of a gradient; needed by plans.
    errors: str = ""
    #: Further fields of the section ``compression`` that act with it; its code finds them in ``Settings.parameters``.
    fields: tuple[str, ...] = ()
    #: What was not sent is added to the next gradient, unless the configuration says otherwise.
    uses_error_feedback: bool = True
    #: A value can be sent to the one rank that needs it, as ZeRO asks for. Such a method keeps no state between steps.
    one_way: bool = False
    #: Why a parameter is sent uncompressed; empty if it is not.
    why_uncompressed: Callable[[Parameter], str] = lambda parameter: ""
    #: In the space of a study that names none.
    offered: bool = False
    #: Shown for comparison with a prediction.
    compared: bool = False
    #: The communication hook of torch that does the same.
    torch_hook: TorchHook | None = None
    #: What other trainers call it, by export target.
    export_names: Mapping[str, str] = field(default_factory=dict)

    def has(self, field: str) -> bool:
        """Whether a field of the section ``compression`` acts with it."""
        return field == self.value or field in self.fields

    def __post_init__(self) -> None:
        """A plan needs to know what it can choose, and what it costs."""
        assert not self.errors or self.layer_value is not None, f"{self.build} has errors of no value"


def _bounds_around(usual: float) -> tuple[int, int]:
    """From floor(usual / 2) to ceil(2 * usual), as L-GreCo's authors do."""
    return max(1, math.floor(0.5 * usual)), math.ceil(2 * usual)


def _ratios(usual: float) -> list[Value]:
    powers = range(-_STEPS_OF_A_DOUBLING, _STEPS_OF_A_DOUBLING + 1)
    ratios = [float(usual) * 2 ** (power / _STEPS_OF_A_DOUBLING) for power in powers]
    return list(dict.fromkeys(min(1.0, ratio) for ratio in ratios))


def _ranks(usual: float) -> list[Value]:
    low, high = _bounds_around(usual)
    return list(range(low, high + 1))


def _bits(usual: float) -> list[Value]:
    low, high = _bounds_around(usual)
    return list(range(max(low, MIN_BITS), min(high, MAX_BITS) + 1))


def _ratio_problem(value: float) -> str:
    return "" if value <= 1 else "give at most 1"


def _rank_problem(value: float) -> str:
    whole = max(1, round(value))
    return "" if value == whole else f"nearest legal: {whole}"


def _bits_problem(value: float) -> str:
    legal = value == int(value) and MIN_BITS <= value <= MAX_BITS
    return "" if legal else f"legal: {MIN_BITS} to {MAX_BITS}"


RATIO = LayerValue("a ratio", _ratio_problem, _ratios)
RANK = LayerValue("a rank", _rank_problem, _ranks)
BITS = LayerValue("a number of bits", _bits_problem, _bits)


def _too_few_to_select(parameter: Parameter) -> str:
    few = parameter.value * parameter.count < 1
    return f"{parameter.count:,} values, of which ratio {parameter.value:g} is less than one" if few else ""


def values_per_scale(parameters: Parameters) -> int:
    """How many values share a scale, of a method whose entry names ``bucket_values``."""
    return int(parameters["bucket_values"] or 0)


def _too_few_for_a_scale(parameter: Parameter) -> str:
    least = values_per_scale(parameter.parameters)
    return (
        ""
        if parameter.count >= least
        else f"{parameter.count:,} values are fewer than the {least:,} that share a scale"
    )


def _no_factors(parameter: Parameter) -> str:
    """PowerSGD leaves alone what two factors of its rank do not make half as small."""
    if len(parameter.shape) < 2:
        return "no matrix"
    rank, (rows, columns) = int(parameter.value), parameter.shape[-2:]
    if rank > min(rows, columns):
        return f"rank {rank} is larger than the matrix ({rows:,} x {columns:,})"
    if 2 * rank * (rows + columns) > rows * columns:
        return f"factors of rank {rank} save less than half of {rows:,} x {columns:,}"
    return ""


def bytes_per_value(traffic: WireInputs) -> float:
    """Of one value with its share of a scale."""
    return traffic.value / 8 + FP32_BYTES / values_per_scale(traffic.parameters)


def _two_ways(traffic: WireInputs) -> float:
    """To all and from all; a share of the average, and what was left out of it."""
    coded = bytes_per_value(traffic)
    return 2 * coded + (coded + FP32_BYTES) / traffic.ranks


def _cast(
    name: str,
    export_names: Mapping[str, str],
    gpu_only: bool = False,
    offered: bool = False,
    compared: bool = False,
) -> CompressionMethod:
    return CompressionMethod(
        "",
        "engine.compression.methods.cast",
        name,
        value=16,
        wire_bytes=lambda traffic: 2.0,
        message_bytes=lambda traffic: 2.0,
        uses_error_feedback=False,
        offered=offered,
        compared=compared,
        torch_hook=TorchHook("default_hooks", f"{name}_compress_hook", gpu_only=gpu_only),
        export_names=export_names,
    )


def _integers(bits: int, compared: bool = False) -> CompressionMethod:
    return CompressionMethod(
        "1610.02132",
        "engine.compression.methods.quantize",
        "integers",
        value=bits,
        wire_bytes=bytes_per_value,
        message_bytes=_two_ways,
        layer_value=BITS,
        errors="rounding_errors",
        fields=("bucket_values", "stochastic"),
        one_way=True,
        why_uncompressed=_too_few_for_a_scale,
        offered=True,
        compared=compared,
    )


def _factor_bytes(traffic: WireInputs) -> float:
    return FP32_BYTES * traffic.value * traffic.factors


#: By the names that configurations use, beside "none".
COMPRESSION_METHODS: dict[str, CompressionMethod] = {
    "fp16": _cast("fp16", {"deepspeed": "fp16"}, offered=True),
    "bf16": _cast(
        "bf16",
        {"deepspeed": "bf16", "megatron": "--grad-reduce-in-bf16"},
        gpu_only=True,
        compared=True,
    ),
    "int8": _integers(8, compared=True),
    "int4": _integers(4),
    "topk": CompressionMethod(
        "1809.07599",
        "engine.compression.methods.sparsify",
        "TopK",
        value="ratio",
        # A gather sends (n - 1) payloads of a value and a place, a ring all-reduce 2 (n - 1) / n of its bytes.
        wire_bytes=lambda traffic: 2 * FP32_BYTES * traffic.value * traffic.ranks / 2,
        message_bytes=lambda traffic: 2 * FP32_BYTES * traffic.value * (1 + traffic.ranks),
        layer_value=RATIO,
        errors="top_k_errors",
        why_uncompressed=_too_few_to_select,
        offered=True,
    ),
    # Without a memory it has no bias, and at small ratios learns better than with errors that come back after
    # 1 / ratio steps (benchmarks/results/communication_quality.md).
    "randomk": CompressionMethod(
        "1809.07599",
        "engine.compression.methods.sparsify",
        "RandomK",
        value="ratio",
        wire_bytes=lambda traffic: FP32_BYTES * traffic.value,
        message_bytes=lambda traffic: (FP32_BYTES + 2 * FLOAT64_BYTES) * traffic.value,
        layer_value=RATIO,
        errors="random_k_errors",
        uses_error_feedback=False,
        why_uncompressed=_too_few_to_select,
    ),
    "powersgd": CompressionMethod(
        "1905.13727",
        "engine.compression.methods.powersgd",
        "PowerSgd",
        value="rank",
        wire_bytes=_factor_bytes,
        message_bytes=_factor_bytes,
        layer_value=RANK,
        errors="low_rank_errors",
        why_uncompressed=_no_factors,
        offered=True,
        compared=True,
        torch_hook=TorchHook(
            "powerSGD_hook",
            "powerSGD_hook",
            "powerSGD_hook.PowerSGDState(\n        dist.group.WORLD, matrix_approximation_rank={rank}, "
            "start_powerSGD_iter={start_step},\n        use_error_feedback={error_feedback},\n    )",
            # It wants a few steps of whole gradients first, with error feedback at least two.
            earliest_start=2,
        ),
    ),
    "sign": CompressionMethod(
        "1802.04434",
        "engine.compression.methods.quantize",
        "signs",
        value=1,
        wire_bytes=bytes_per_value,
        message_bytes=_two_ways,
        fields=("bucket_values",),
        why_uncompressed=_too_few_for_a_scale,
        offered=True,
    ),
}


def names() -> tuple[str, ...]:
    """All that ``compression.method`` can be."""
    return ("none", *COMPRESSION_METHODS)


def methods_by_export_name(target: str) -> dict[str, str]:
    """Methods that the trainer of an export target has, by what it calls them."""
    return {
        method.export_names[target]: name
        for name, method in COMPRESSION_METHODS.items()
        if target in method.export_names
    }


def planned_methods() -> tuple[str, ...]:
    """Methods whose value a plan chooses for each layer."""
    return tuple(name for name, method in COMPRESSION_METHODS.items() if method.errors)


def one_way() -> tuple[str, ...]:
    """Methods that can send values to the rank alone that needs them."""
    return tuple(name for name, method in COMPRESSION_METHODS.items() if method.one_way)
