"""Environment variables that a study can be offered: those that can act on its ranks, with sensible values."""

from __future__ import annotations

from typing import Any

from engine.config.environment import SECTION, silent
from engine.config.environment_catalog import VARIABLES

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
