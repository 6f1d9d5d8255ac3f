"""The knobs that a study can be offered, environment variables among them, and which it turns by default."""

from __future__ import annotations

from typing import Any

from engine.config.compression_methods import METHODS
from engine.config.environment import SECTION, VARIABLES, silent
from engine.config.run_config import RunConfig
from engine.schedules.registry import KINDS

#: From this length on, activations of one sequence are what a rank may not hold: context parallelism splits them.
LONG_SEQUENCE = 8_192
#: More ranks than usual machines have: copies that are whole on each machine spare the network between them.
MANY_RANKS = 9
#: Widths of hybrid sharding that are offered: no wider than one usual machine.
WIDEST_SHARD = 8
#: Overlap and formats whose gain depends on the network, or that change the arithmetic.
ONLY_IF_ASKED: dict[str, Any] = {
    "overlap.prefetch": [0, 1, 2],
    "overlap.gather_with_optimizer": [False, True],
    "overlap.tp_chunks": [1, 2, 4],
    "overlap.delay": [0, 1],
    "compression.weights": ["none", "int8"],
}


def default_space(base: RunConfig, ranks: int) -> dict[str, Any]:
    """A sensible space for a machine: layouts and how they communicate, or on one device what is left.

    Context parallelism is in it from 8,192 tokens a sequence on, or when a step has fewer sequences than ranks;
    expert parallelism when the model has experts; hybrid sharding from nine ranks on. Outer loops never are: what they
    do to the loss shows after more steps than a usual trial has.
    """
    offered = offered_space(base, ranks)
    return {key: values for key, values in offered.items() if _suits(key, base, ranks)}


def offered_space(base: RunConfig, ranks: int) -> dict[str, Any]:
    """Every knob with sensible values, also those that are not turned unless somebody asks for them."""
    space: dict[str, Any] = {
        "batch.micro_batch": _micro_batches(base),
        "memory.recompute": ["none", "selective", "full"],
    }
    if ranks == 1:
        return space | {"compile": [False, True]}
    degrees = [degree for degree in range(1, ranks + 1) if ranks % degree == 0]
    return {
        "parallel.tp": degrees,
        "parallel.pp": degrees,
        "parallel.cp": degrees,
        "parallel.cp_method": ["ring", "ulysses"],
        **({} if base.model.experts is None else {"parallel.ep": degrees}),
        "parallel.zero_stage": [0, 1, 2, 3],
        "parallel.shard_ranks": [None, *(width for width in degrees[1:-1] if width <= WIDEST_SHARD)],
        **space,
        "schedule.kind": [name for name, kind in KINDS.items() if kind.offered],
        "schedule.chunks": [1, 2],
        "compression.method": ["none", *(name for name, method in METHODS.items() if method.offered)],
        "compression.ratio": {"low": 0.01, "high": 0.25, "log": True},
        "compression.rank": [1, 2, 4, 8],
        "outer.method": ["none", "local", "diloco", "streaming", "co2"],
        "outer.period": [2, 4, 8, 12],
        "overlap.bucket_mb": [1.0, 5.0, 25.0],
        **ONLY_IF_ASKED,
        **({} if base.model.experts is None else {"compression.experts": ["none", "bf16", "int8"]}),
    }


def _suits(key: str, base: RunConfig, ranks: int) -> bool:
    if key in ("parallel.cp", "parallel.cp_method"):
        return base.data.sequence_length >= LONG_SEQUENCE or base.batch.global_batch < ranks
    if key.startswith("outer.") or key in ONLY_IF_ASKED or key == "compression.experts":
        return False
    return key != "parallel.shard_ranks" or ranks >= MANY_RANKS


def _micro_batches(base: RunConfig) -> list[int]:
    whole = base.batch.global_batch
    powers = [2**power for power in range(5) if whole % 2**power == 0]
    return sorted({*powers, base.batch.micro_batch})


def space_note(ranks: int, given: bool) -> str:
    """What the space covers and why, in words; of one that the user gave only that it has no layouts."""
    if ranks == 1:
        turned = "" if given else "; the study turns micro-batch, recomputation and compile"
        return f"one device: there is no layout to choose{turned}"
    if given:
        return ""
    return f"no space given: the study turns layout, batch, memory and communication knobs for {ranks} ranks"


_KIB, _MIB = 2**10, 2**20
#: Values beside "as the machine has it". What can corrupt data or needs rare hardware is left to whoever types it in.
_CHOICES: dict[str, tuple[Any, ...]] = {
    "MALLOC_ARENA_MAX": (1, 2, 4),
    "MALLOC_MMAP_THRESHOLD_": (128 * _KIB, 32 * _MIB),
    "MALLOC_TRIM_THRESHOLD_": (128 * _KIB, 256 * _MIB),
    "NCCL_ALGO": ("Ring", "Tree"),
    "NCCL_PROTO": ("LL", "Simple"),
    "NCCL_MIN_NCHANNELS": (4, 8, 16),
    "NCCL_MAX_NCHANNELS": (2, 4, 8),
    "NCCL_MIN_CTAS": (4, 8, 16),
    "NCCL_MAX_CTAS": (2, 4, 8),
    "NCCL_NTHREADS": (256, 512),
    "NCCL_BUFFSIZE": (2 * _MIB, 8 * _MIB),
    "NCCL_P2P_LEVEL": ("NVL", "PHB", "SYS"),
    "NCCL_P2P_DISABLE": (True,),
    "NCCL_SHM_DISABLE": (True,),
    "NCCL_NET_GDR_LEVEL": ("PIX", "PHB", "SYS"),
    "NCCL_IB_QPS_PER_CONNECTION": (2, 4),
    "NCCL_IB_SPLIT_DATA_ON_QPS": (True,),
    "NCCL_CROSS_NIC": (0, 1),
    "NCCL_NVLS_ENABLE": (0, 1),
    "NCCL_PXN_DISABLE": (True,),
    "NCCL_P2P_NET_CHUNKSIZE": (256 * _KIB, 512 * _KIB),
    "NCCL_SOCKET_NTHREADS": (2, 4),
    "NCCL_NSOCKS_PERTHREAD": (2, 4),
    "TORCH_NCCL_HIGH_PRIORITY": (True,),
    "TORCH_NCCL_CUDA_EVENT_CACHE": (False, True),
    "CUDA_DEVICE_MAX_CONNECTIONS": (1, 32),
    "allocator_max_split_size_mb": (128, 512),
    "allocator_expandable_segments": (True,),
    "allocator_garbage_collection_threshold": (0.6, 0.8),
    "allocator_roundup_power2_divisions": (4, 8),
}


def offered_environment(kind: str, ranks: int, cores: int) -> dict[str, list[Any]]:
    """Those that can act on ranks of a kind of device (``cpu``, ``cuda``), as a study's ``space`` has them.

    None comes first: a variable as the machine has it. Threads go up to what each rank has of ``cores``, at least 2.
    """
    choices = {"OMP_NUM_THREADS": _threads(max(2, cores // ranks)), **_CHOICES}
    return {
        f"{SECTION}.{name}": [None, *choices[name]] for name in VARIABLES if silent(name, kind, ranks) is None
    }


def _threads(most: int) -> tuple[int, ...]:
    return tuple(2**power for power in range(most.bit_length()))
