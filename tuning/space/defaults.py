"""The knobs that a study can be offered, environment variables among them, and which it turns by default."""

from __future__ import annotations

from typing import Any

from engine.config.environment import SECTION, VARIABLES, silent
from engine.config.knobs import KNOBS, Search
from engine.config.run_config import RunConfig


def default_space(base: RunConfig, ranks: int) -> dict[str, Any]:
    """A sensible space for a machine: layouts and how they communicate, or on one device what is left.

    Context parallelism is in it from 8,192 tokens a sequence on, or when a step has fewer sequences than ranks;
    expert parallelism when the model has experts; hybrid sharding from nine ranks on. Outer loops never are: what they
    do to the loss shows after more steps than a usual trial has.
    """
    search = Search(base, ranks)
    return {key: values for key, values in offered_space(base, ranks).items() if KNOBS[key].usual(search)}


def offered_space(base: RunConfig, ranks: int) -> dict[str, Any]:
    """Every knob with sensible values, also those that are not turned unless somebody asks for them."""
    search = Search(base, ranks)
    values = {key: knob.offered(search) for key, knob in KNOBS.items()}
    return {key: found for key, found in values.items() if found is not None}


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
