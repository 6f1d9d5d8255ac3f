"""Every collective operation that the workbench records: its names in torch and NCCL, its bytes and its passes. Pure.

The recorder, the reader of NCCL's logs and dumps, bandwidths, wire bytes, verdicts, calibration and prediction ask it.
Who records a call past torch's dispatcher names the operator that it stands in the place of, and its arguments: see
``OperatorCall`` in ``profilers/collectives/recorder.py``. What calls an operation to measure it stands in
``engine/launch/measure/rank.py``.

Several operations may be calls of one operator of torch, told apart by the arguments of a call: each but one has a
predicate on them (``matches``), such as ``lambda arguments: arguments["reduce_op"] == "MAX"``. These are asked first,
in the order of ``OPERATIONS``, and all other calls are of the one without. A variant of an operation is an entry of its
own, and the other one stays as it is. NCCL's log and dumps of its Flight Recorder tell no arguments: there a call is of
the operation that has its name, and a variant is found only where they give it a name of its own (``other_names``,
``nccl_name``).

S is the payload by nccl-tests' definitions (doc/PERFORMANCE.md), n the number of ranks. Shares of S that a rank sends
are means over the ranks: gloo's by its docs/algorithms.md (its reduce-scatter is, in torch, an all-reduce of which each
rank keeps a part), NCCL's by its rings, whose trees send as much in total.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

#: Of the number of ranks.
Share = Callable[[int], float]
#: Of the number of ranks and the payloads in bytes: messages that a rank sends, one number or one for each payload.
Messages = Callable[[int, Any], Any]

#: The verdict on waiting for either end of a message.
POINT_TO_POINT = "point_to_point"

_GLOO_SEGMENT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Operation:
    """What is known of one operation.

    ``operators`` are torch's ``c10d`` operators that are calls of it, each with the argument that is its payload. A
    call that torch has no operator for may have a name of its own here, by which the code that makes it records it.
    Where another operation has one of them, too, ``matches`` says whether a call is of this one, by its arguments under
    the names that torch's schema of the operator gives them, but for the group. ``reduce_op`` is the name of one of
    torch's reductions, as "SUM" or "MAX"; all others are as torch has them: tensors, lists, numbers, None.
    ``other_names`` is what process groups and dumps call it besides, ``nccl_name`` what NCCL's log does.
    ``bus_factor`` is bus over algorithm bandwidth. ``sent`` and ``gloo_sent`` are the shares of S that a rank sends by
    the backend's own algorithm (gloo's where it differs), ``exchange_sent`` by one exchange among all ranks. A call
    that was recorded with its ``CommSample.sent_bytes`` counts with these instead: the engine's channel tells them of
    uneven parts, a call through torch's dispatcher never does.
    ``passes`` around a ring are n - 1 messages of S / n each, and ``tree_messages`` as many one after the other as the
    same takes along a tree, where NCCL has one. Without passes no step with the operation is simulated, but for both
    ends of a message: of them one is priced, and the other is ``priced_at_other_end``.
    None stands for what nobody has defined or measured.
    Waiting for it is the verdict ``exposed_<verdict>``; ``advice`` says what to change then, by the first letters of
    the axis, and the first that fits counts; ``foreign_advice`` says it for jobs whose settings have other names.
    """

    name: str
    operators: Mapping[str, str]
    other_names: tuple[str, ...] = ()
    nccl_name: str | None = None
    payload_is_output: bool = False
    bus_factor: Share | None = None
    sent: Share | None = None
    gloo_sent: Share | None = None
    exchange_sent: Share | None = None
    gloo_messages: Messages = field(default=lambda ranks, payload: 0)
    passes: int | None = None
    tree_messages: Callable[[int], int] | None = None
    priced_at_other_end: bool = False
    #: Whether `workbench calibrate` measures it, which needs its call in ``engine/launch/measure/rank.py``; a send is
    #: measured with its receive.
    calibrated: bool = False
    verdict: str | None = None
    advice: Mapping[str, str] = field(default_factory=dict)
    foreign_advice: str = ""
    matches: Callable[[Mapping[str, Any]], bool] | None = None

    @property
    def point_to_point(self) -> bool:
        """Whether it is an end of a message between two ranks, which nobody can time: one end is posted before the
        other is there, and ends when somebody looks.
        """
        return self.verdict == POINT_TO_POINT


#: For an exchange of local SGD.
_OUTER_ADVICE = (
    "exchange less often with a larger outer.period, or let averages travel beside the next steps with outer.method "
    "co2 or streaming"
)


def _part(ranks: int) -> float:
    """The share of the others."""
    return (ranks - 1) / ranks


def _whole(ranks: int) -> float:
    return 1.0


def _nothing(ranks: int) -> float:
    return 0.0


def _to_all_messages(ranks: int, payload: Any) -> float:
    return (ranks - 1) / ranks


def _segments_twice(ranks: int, payload: Any) -> Any:
    """Of gloo's ring all-reduce, which sends at least two segments to each neighbour and pass."""
    segments = np.ceil(np.ceil(np.asarray(payload, dtype=np.float64) / _GLOO_SEGMENT_BYTES) / ranks)
    return 2 * (ranks - 1) * np.maximum(segments, 2)


ALL_REDUCE = Operation(
    "all_reduce",
    {"allreduce_": "tensors", "allreduce_coalesced_": "tensors"},
    other_names=("allreduce_coalesced",),
    nccl_name="AllReduce",
    bus_factor=lambda ranks: 2 * _part(ranks),
    sent=lambda ranks: 2 * _part(ranks),
    exchange_sent=lambda ranks: float(ranks - 1),
    gloo_messages=_segments_twice,
    passes=2,
    tree_messages=lambda ranks: 2 * math.ceil(math.log2(ranks)),
    calibrated=True,
    verdict="all_reduce",
    advice={
        "dp": "send less with compression.method, hide more with overlap.bucket_mb, or reduce less often with a "
        "larger batch.global_batch",
        "tp": "a smaller parallel.tp, inside one host",
        "outer": _OUTER_ADVICE,
    },
    foreign_advice="send less (a communication hook in bf16), reduce less often (gradient accumulation without "
    "synchronisation), or hide more with other bucket sizes",
)
ALL_GATHER = Operation(
    "all_gather",
    {
        "allgather_": "output_tensors",
        "_allgather_base_": "output_tensor",
        "allgather_coalesced_": "output_lists",
        "allgather_into_tensor_coalesced_": "outputs",
    },
    other_names=(
        "_all_gather_base",
        "_allgather_base",
        "allgather_coalesced",
        "all_gather_into_tensor_coalesced",
        "allgather_into_tensor_coalesced",
    ),
    nccl_name="AllGather",
    payload_is_output=True,
    bus_factor=_part,
    sent=_part,
    exchange_sent=_part,
    gloo_messages=lambda ranks, payload: 2 * (ranks - 1),
    passes=1,
    calibrated=True,
    verdict="all_gather",
    advice={
        "dp": "gather less often with a smaller parallel.zero_stage or a schedule that takes one chunk after "
        "the other, such as schedule.kind=breadth_first, send fewer bytes with compression.weights, or overlap "
        "with computation by overlap.prefetch (zero_stage 2, 3) or overlap.gather_with_optimizer (1)",
        "tp": "keep what was gathered with parallel.tp_regather=false, overlap gathers with products by "
        "overlap.tp_chunks, or a smaller parallel.tp",
        "outer": _OUTER_ADVICE,
    },
    foreign_advice="shard less (gather parameters once a step), prefetch further ahead, or send fewer bytes",
)
REDUCE_SCATTER = Operation(
    "reduce_scatter",
    {
        "reduce_scatter_": "input_tensors",
        "_reduce_scatter_base_": "input_tensor",
        "reduce_scatter_tensor_coalesced_": "inputs",
    },
    other_names=("_reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
    nccl_name="ReduceScatter",
    bus_factor=_part,
    sent=_part,
    gloo_sent=lambda ranks: 2 * _part(ranks),
    exchange_sent=_part,
    gloo_messages=_segments_twice,
    passes=1,
    calibrated=True,
    verdict="reduce_scatter",
    advice={
        "dp": "send less with compression.method, scatter once a step with "
        "parallel.reduce_every_micro_batch=false, or among fewer ranks with parallel.shard_ranks",
        "tp": "overlap scatters with products by overlap.tp_chunks, or a smaller parallel.tp, inside one host",
        "outer": _OUTER_ADVICE,
    },
    foreign_advice="reduce once a step under gradient accumulation, in 16 bits, or among fewer ranks",
)
ALL_TO_ALL = Operation(
    "all_to_all",
    {"alltoall_": "input_tensors", "alltoall_base_": "input"},
    other_names=("alltoall_base", "all_to_all_single"),
    bus_factor=_part,
    sent=_part,
    gloo_messages=lambda ranks, payload: ranks - 1,
    passes=1,
    calibrated=True,
    verdict="all_to_all",
    advice={
        "cp": "parallel.cp_method=ring, or a smaller parallel.cp",
        "sequence": "parallel.sequence_groups=planned where all groups are alike, for long documents alone are "
        "shared then; or a smaller data.longest_document, which smaller groups hold",
        "": "fewer bytes with compression.experts, fewer tokens with model.capacity_factor or "
        "model.experts_per_token, or a smaller parallel.ep",
    },
)
BROADCAST = Operation(
    "broadcast",
    {"broadcast_": "tensors"},
    nccl_name="Broadcast",
    bus_factor=_whole,
    sent=_part,
    gloo_messages=_to_all_messages,
)
REDUCE = Operation(
    "reduce",
    {"reduce_": "tensors"},
    nccl_name="Reduce",
    bus_factor=_whole,
    sent=_part,
    # A ring reduce-scatter whose parts go to one rank.
    gloo_sent=lambda ranks: _part(ranks) * (ranks + 1) / ranks,
    gloo_messages=lambda ranks, payload: 2 * (ranks - 1) + _part(ranks),
)
GATHER = Operation(
    "gather",
    {"gather_": "input_tensors", "gather_into_tensor_": "input_tensor"},
    sent=_part,
    gloo_messages=_to_all_messages,
)
SCATTER = Operation(
    "scatter",
    {"scatter_": "output_tensors"},
    payload_is_output=True,
    sent=_part,
    gloo_messages=_to_all_messages,
)
SEND = Operation(
    "send",
    {"send": "tensors"},
    bus_factor=_whole,
    sent=_whole,
    gloo_messages=lambda ranks, payload: 1,
    calibrated=True,
    verdict=POINT_TO_POINT,
    advice={
        "pp": "fewer stage boundaries with a smaller schedule.chunks or parallel.pp",
        "cp": "parallel.cp_method=ulysses, or a smaller parallel.cp",
    },
)
RECV = Operation(
    "recv",
    {"recv_": "tensors", "recv_any_source_": "tensors"},
    payload_is_output=True,
    bus_factor=_whole,
    sent=_nothing,
    priced_at_other_end=True,
    verdict=POINT_TO_POINT,
)
BARRIER = Operation(
    "barrier",
    {"barrier": "tensor", "monitored_barrier_": "tensor"},
    other_names=("all_reduce_barrier",),
    sent=_nothing,
    gloo_messages=lambda ranks, payload: math.ceil(math.log2(ranks)),
)

OPERATIONS: tuple[Operation, ...] = (
    ALL_REDUCE,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    BROADCAST,
    REDUCE,
    GATHER,
    SCATTER,
    SEND,
    RECV,
    BARRIER,
)


def operation_of(name: str) -> Operation | None:
    """The operation of that name, or of one that process groups give it; None if there is none."""
    return next(
        (operation for operation in OPERATIONS if name == operation.name or name in operation.other_names),
        None,
    )


def by_operator() -> dict[str, list[Operation]]:
    """The operations whose calls an operator of torch can be, by its name: in the order in which they are asked."""
    operations_of: dict[str, list[Operation]] = {}
    for operation in sorted(OPERATIONS, key=lambda candidate: candidate.matches is None):
        for operator in operation.operators:
            operations_of.setdefault(operator, []).append(operation)
    return operations_of


def is_message(name: str) -> bool:
    """Whether the operation of that name is an end of a message between two ranks."""
    operation = operation_of(name)
    return operation is not None and operation.point_to_point


def message_operations() -> tuple[str, ...]:
    """Names of both ends of a message."""
    return tuple(operation.name for operation in OPERATIONS if operation.point_to_point)


def named_in_nccl() -> dict[str, str]:
    """Names of operations, by what NCCL's log and its tests call them."""
    return {
        operation.nccl_name: operation.name for operation in OPERATIONS if operation.nccl_name is not None
    }


def calibrated_operations() -> tuple[str, ...]:
    """Names of those that a calibration measures."""
    return tuple(operation.name for operation in OPERATIONS if operation.calibrated)
