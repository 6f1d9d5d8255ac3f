"""Compression methods by the names that configurations use, and what each of them asks for. Pure, without torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

#: A ratio, a number of bits or a rank; None leaves a part alone.
Value = float | int | None

FP32_BYTES, FLOAT64_BYTES = 4, 8
#: Bits that integers can have.
MIN_BITS, MAX_BITS = 2, 8
#: Steps of a ratio between the half and the double, each 2^(1/8) of the last one.
_STEPS_OF_A_DOUBLING = 8


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter whose gradient may be compressed, and how: ``bucket_values`` values share a scale."""

    shape: tuple[int, ...]
    value: float
    bucket_values: int

    @property
    def count(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


class Traffic(NamedTuple):
    """What the bytes of a gradient depend on: a method's value, how many values share a scale, how many ranks share
    the gradient, and ``factors``: rows and columns of all matrices over their values.
    """

    value: float
    bucket_values: int
    ranks: int
    factors: float


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
    """Facts about a method.

    ``paper`` is its arXiv number, if it has one. ``module`` has its code: ``build`` there makes the ``Method`` of a
    bucket, and ``errors`` is a ``LayerErrors`` that tells what each value would lose of a gradient (both are in
    ``engine/compression/interface.py``); without such a name no plan chooses values.
    ``value`` is the field of the section ``compression`` that holds its usual value, or that value itself. Further
    ``fields`` of the section act with it. ``feeds_back``: what was not sent is added to the next gradient unless the
    configuration says otherwise. ``one_way``: values can go to the rank alone that needs them, as ZeRO asks for; what
    does so keeps nothing from step to step. ``sent`` bytes a value count as those of a ring all-reduce. ``held`` bytes
    are those of its messages on a rank; under ZeRO they are not asked for: a rank holds what it sends, and as much
    that comes in. ``why_uncompressed`` says why a parameter is sent as it is ("" if not). ``offered`` methods are in
    the space of a study that names none, ``compared`` ones beside a prediction. ``elsewhere`` is what other trainers
    call it, by the name of their export target.
    """

    paper: str
    module: str
    build: str
    value: str | int
    sent: Callable[[Traffic], float]
    held: Callable[[Traffic], float]
    layer_value: LayerValue | None = None
    errors: str = ""
    fields: tuple[str, ...] = ()
    feeds_back: bool = True
    one_way: bool = False
    why_uncompressed: Callable[[Parameter], str] = lambda parameter: ""
    offered: bool = False
    compared: bool = False
    torch_hook: TorchHook | None = None
    elsewhere: Mapping[str, str] = field(default_factory=dict)

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


def _too_few_for_a_scale(parameter: Parameter) -> str:
    if parameter.count >= parameter.bucket_values:
        return ""
    return f"{parameter.count:,} values are fewer than the {parameter.bucket_values:,} that share a scale"


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


def bytes_per_value(traffic: Traffic) -> float:
    """Of one value with its share of a scale."""
    return traffic.value / 8 + FP32_BYTES / traffic.bucket_values


def _two_ways(traffic: Traffic) -> float:
    """To all and from all; a share of the average, and what was left out of it."""
    coded = bytes_per_value(traffic)
    return 2 * coded + (coded + FP32_BYTES) / traffic.ranks


def _cast(
    name: str,
    elsewhere: Mapping[str, str],
    gpu_only: bool = False,
    offered: bool = False,
    compared: bool = False,
) -> CompressionMethod:
    return CompressionMethod(
        "",
        "engine.compression.methods.cast",
        name,
        value=16,
        sent=lambda traffic: 2.0,
        held=lambda traffic: 2.0,
        feeds_back=False,
        offered=offered,
        compared=compared,
        torch_hook=TorchHook("default_hooks", f"{name}_compress_hook", gpu_only=gpu_only),
        elsewhere=elsewhere,
    )


def _integers(bits: int, compared: bool = False) -> CompressionMethod:
    return CompressionMethod(
        "1610.02132",
        "engine.compression.methods.quantize",
        "integers",
        value=bits,
        sent=bytes_per_value,
        held=_two_ways,
        layer_value=BITS,
        errors="rounding_errors",
        fields=("bucket_values", "stochastic"),
        one_way=True,
        why_uncompressed=_too_few_for_a_scale,
        offered=True,
        compared=compared,
    )


def _factor_bytes(traffic: Traffic) -> float:
    return FP32_BYTES * traffic.value * traffic.factors


#: By the names that configurations use, beside "none".
METHODS: dict[str, CompressionMethod] = {
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
        sent=lambda traffic: 2 * FP32_BYTES * traffic.value * traffic.ranks / 2,
        held=lambda traffic: 2 * FP32_BYTES * traffic.value * (1 + traffic.ranks),
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
        sent=lambda traffic: FP32_BYTES * traffic.value,
        held=lambda traffic: (FP32_BYTES + 2 * FLOAT64_BYTES) * traffic.value,
        layer_value=RATIO,
        errors="random_k_errors",
        feeds_back=False,
        why_uncompressed=_too_few_to_select,
    ),
    "powersgd": CompressionMethod(
        "1905.13727",
        "engine.compression.methods.powersgd",
        "PowerSgd",
        value="rank",
        sent=_factor_bytes,
        held=_factor_bytes,
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
        sent=bytes_per_value,
        held=_two_ways,
        fields=("bucket_values",),
        why_uncompressed=_too_few_for_a_scale,
        offered=True,
    ),
}


def names() -> tuple[str, ...]:
    """All that ``compression.method`` can be."""
    return ("none", *METHODS)


def methods_elsewhere(target: str) -> dict[str, str]:
    """Methods that the trainer of an export target has, by what it calls them."""
    return {method.elsewhere[target]: name for name, method in METHODS.items() if target in method.elsewhere}


def planned_methods() -> tuple[str, ...]:
    """Methods whose value a plan chooses for each layer."""
    return tuple(name for name, method in METHODS.items() if method.errors)


def one_way() -> tuple[str, ...]:
    """Methods that can send values to the rank alone that needs them."""
    return tuple(name for name, method in METHODS.items() if method.one_way)
