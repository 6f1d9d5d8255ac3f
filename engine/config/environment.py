"""The environment variables that a run may set: a checked list, each with its values, its source and what it does;
as variables of a process, and where they cannot act. Pure but for ``take``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from engine.config.errors import LayoutError
from engine.config.sections import KnobValues, Section

_NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
_TORCH_NCCL = "https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html"
_TORCH_CUDA = "https://docs.pytorch.org/docs/stable/notes/cuda.html"
_CUDA = "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html"
_OPENMP = "https://www.openmp.org/specifications/"
_GLIBC = "https://man7.org/linux/man-pages/man3/mallopt.3.html"
_KIB, _MIB = 2**10, 2**20

Channels = Annotated[int, Field(ge=1, le=64)]
Level = Literal["LOC", "NVL", "PIX", "PXB", "PHB", "SYS"]
#: Where a variable acts: on any rank, on ranks that talk over NCCL, or on ranks that compute on GPUs.
Where = Literal["anywhere", "nccl", "gpu"]
#: When it is read: once a process needs it, so a rank can set it after the fork; or as a program starts.
Read = Literal["first use", "start"]
#: The part of a run that a variable turns while the run goes: its operators have as many threads from then on.
THREADS = "threads"


@dataclass(frozen=True, slots=True)
class Variable:
    """What is known of a setting. ``since`` is a library's version, "any" where its documentation names none that is
    younger than what this package needs; ``part`` is its key within ``name``, where a variable holds several settings.
    ``offered`` are the values that a search is offered beside "as the machine has it", or a function of the cores that
    a rank has: what can corrupt data or needs rare hardware is left to whoever types it in. ``live`` is the part of a
    run that it turns while the run goes; one without says why not: ``why_only_at_start``.
    """

    effect: str
    since: str
    source: str
    offered: tuple[Any, ...] | Callable[[int], tuple[Any, ...]] = ()
    acts: Where = "anywhere"
    read: Read = "first use"
    name: str | None = None
    part: str | None = None
    live: str = ""
    why_only_at_start: str = ""

    def offered_on(self, cores: int) -> tuple[Any, ...]:
        """The values that a search is offered on ranks with so many cores each."""
        return self.offered if isinstance(self.offered, tuple) else self.offered(cores)


def _nccl(does: str, since: str, offered: tuple[Any, ...] = ()) -> Variable:
    why = "NCCL reads it once, as its first communicator is made; it would take new processes"
    return Variable(
        does, since if since == "any" else f"NCCL {since}", _NCCL, offered, "nccl", why_only_at_start=why
    )


def _torch_nccl(does: str, since: str, offered: tuple[Any, ...] = ()) -> Variable:
    why = "torch reads it as process groups are made; it would take new groups"
    return Variable(does, f"torch {since}", _TORCH_NCCL, offered, "nccl", why_only_at_start=why)


def _allocator(does: str, since: str, part: str, offered: tuple[Any, ...] = ()) -> Variable:
    return Variable(
        does,
        since if since == "any" else f"torch {since}",
        _TORCH_CUDA,
        offered,
        "gpu",
        name="PYTORCH_ALLOC_CONF",
        part=part,
        why_only_at_start="what the GPU allocator holds was cut by the old setting; it would take freeing all of it",
    )


def _malloc(does: str, since: str, offered: tuple[Any, ...] = ()) -> Variable:
    why = "the C library reads it as a process begins; it would take new processes"
    source = since if since == "any" else f"glibc {since}"
    return Variable(does, source, _GLIBC, offered, read="start", why_only_at_start=why)


def _thread_counts(cores: int) -> tuple[int, ...]:
    """Powers of two up to what a rank has of the cores, and 2 at least."""
    return tuple(2**power for power in range(max(2, cores).bit_length()))


class Environment(Section):
    """Environment variables of the ranks; what is not given stays as the machine has it.

    ``allocator_`` settings are put together as PYTORCH_ALLOC_CONF. What each one does, from which version on, and where
    that is documented: ``engine/config/environment.py``.
    """

    OMP_NUM_THREADS: Annotated[
        Annotated[int, Field(ge=1, le=1024)] | None,
        Variable(
            "threads of a rank's operators; without it the cores are dealt to ranks",
            "any",
            _OPENMP,
            _thread_counts,
            live=THREADS,
        ),
    ] = None
    MALLOC_ARENA_MAX: Annotated[
        Annotated[int, Field(ge=1, le=64)] | None,
        _malloc(
            "most arenas of malloc: fewer waste less memory, and threads wait for each other",
            "2.10",
            (1, 2, 4),
        ),
    ] = None
    MALLOC_MMAP_THRESHOLD_: Annotated[
        Annotated[int, Field(ge=4096, le=2**25)] | None,
        _malloc(
            "bytes from which on malloc maps memory by itself, and gives it back at once",
            "any",
            (128 * _KIB, 32 * _MIB),
        ),
    ] = None
    MALLOC_TRIM_THRESHOLD_: Annotated[
        Annotated[int, Field(ge=4096, le=2**31 - 1)] | None,
        _malloc(
            "bytes that may lie free at the top of malloc's heap before they are given back",
            "any",
            (128 * _KIB, 256 * _MIB),
        ),
    ] = None
    NCCL_ALGO: Annotated[
        Literal["Ring", "Tree", "CollnetDirect", "CollnetChain", "NVLS", "NVLSTree", "PAT"] | None,
        _nccl("the only algorithm; from 2.24 on operations fail that it cannot do", "2.5", ("Ring", "Tree")),
    ] = None
    NCCL_PROTO: Annotated[
        Literal["LL", "LL128", "Simple"] | None,
        _nccl(
            "the only protocol; LL128 can corrupt data where NCCL would not choose it itself",
            "2.5",
            ("LL", "Simple"),
        ),
    ] = None
    NCCL_MIN_NCHANNELS: Annotated[
        Channels | None, _nccl("fewest channels: thread blocks that send", "2.5", (4, 8, 16))
    ] = None
    NCCL_MAX_NCHANNELS: Annotated[
        Channels | None, _nccl("most channels: thread blocks that send", "2.5", (2, 4, 8))
    ] = None
    NCCL_MIN_CTAS: Annotated[Channels | None, _nccl("fewest thread blocks that send", "2.17", (4, 8, 16))] = (
        None
    )
    NCCL_MAX_CTAS: Annotated[Channels | None, _nccl("most thread blocks that send", "2.17", (2, 4, 8))] = None
    NCCL_NTHREADS: Annotated[
        Literal[64, 128, 256, 512] | None, _nccl("threads of a thread block that sends", "any", (256, 512))
    ] = None
    NCCL_BUFFSIZE: Annotated[
        Annotated[int, Field(ge=1024, le=2**30)] | None,
        _nccl("bytes of the buffer between two GPUs; powers of two", "any", (2 * _MIB, 8 * _MIB)),
    ] = None
    NCCL_P2P_LEVEL: Annotated[
        Level | None, _nccl("how far apart GPUs may be to copy directly", "2.3.4", ("NVL", "PHB", "SYS"))
    ] = None
    NCCL_P2P_DISABLE: Annotated[bool | None, _nccl("no direct copies between GPUs", "any", (True,))] = None
    NCCL_SHM_DISABLE: Annotated[
        bool | None, _nccl("no shared memory between GPUs of a host", "any", (True,))
    ] = None
    NCCL_NET_GDR_LEVEL: Annotated[
        Literal["LOC", "PIX", "PXB", "PHB", "SYS"] | None,
        _nccl("how far a network card may be from a GPU to read its memory", "2.4.0", ("PIX", "PHB", "SYS")),
    ] = None
    NCCL_IB_QPS_PER_CONNECTION: Annotated[
        Annotated[int, Field(ge=1, le=128)] | None,
        _nccl("InfiniBand queue pairs of two ranks", "2.10", (2, 4)),
    ] = None
    NCCL_IB_SPLIT_DATA_ON_QPS: Annotated[
        bool | None,
        _nccl("splits a message over queue pairs, instead of taking them in turns", "2.18", (True,)),
    ] = None
    NCCL_CROSS_NIC: Annotated[
        Literal[0, 1, 2] | None,
        _nccl("rings through several network cards: never, allowed, if faster", "any", (0, 1)),
    ] = None
    NCCL_NVLS_ENABLE: Annotated[
        Literal[0, 1, 2] | None, _nccl("sums within NVLink switches: off, on, if supported", "2.17", (0, 1))
    ] = None
    NCCL_PXN_DISABLE: Annotated[
        bool | None, _nccl("no detour through another GPU to its network card", "2.12", (True,))
    ] = None
    NCCL_P2P_NET_CHUNKSIZE: Annotated[
        Annotated[int, Field(ge=4096, le=2**30)] | None,
        _nccl("bytes of a message of send and recv over the network", "2.14", (256 * _KIB, 512 * _KIB)),
    ] = None
    NCCL_SOCKET_NTHREADS: Annotated[
        Annotated[int, Field(ge=1, le=16)] | None,
        _nccl("processor threads of a socket connection", "2.4.8", (2, 4)),
    ] = None
    NCCL_NSOCKS_PERTHREAD: Annotated[
        Annotated[int, Field(ge=1, le=64)] | None,
        _nccl("sockets of such a thread; the product is at most 64", "2.4.8", (2, 4)),
    ] = None
    TORCH_NCCL_HIGH_PRIORITY: Annotated[
        bool | None, _torch_nccl("collectives run on a stream of high priority", "2.2", (True,))
    ] = None
    TORCH_NCCL_CUDA_EVENT_CACHE: Annotated[
        bool | None, _torch_nccl("uses the events of ended collectives again", "2.6", (False, True))
    ] = None
    CUDA_DEVICE_MAX_CONNECTIONS: Annotated[
        Annotated[int, Field(ge=1, le=32)] | None,
        Variable(
            "queues from the host to a GPU; with 1 kernels start in order",
            "CUDA 5.0",
            _CUDA,
            (1, 32),
            "gpu",
            why_only_at_start="the driver reads it as a process first uses its GPU; it would take new processes",
        ),
    ] = None
    allocator_max_split_size_mb: Annotated[
        Annotated[int, Field(ge=21)] | None,
        _allocator(
            "larger blocks of the GPU allocator are not split", "any", "max_split_size_mb", (128, 512)
        ),
    ] = None
    allocator_expandable_segments: Annotated[
        bool | None,
        _allocator(
            "segments of the GPU allocator grow, so less lies idle between",
            "2.1",
            "expandable_segments",
            (True,),
        ),
    ] = None
    allocator_garbage_collection_threshold: Annotated[
        Annotated[float, Field(gt=0, lt=1)] | None,
        _allocator(
            "used share of memory from which on unused blocks go back",
            "any",
            "garbage_collection_threshold",
            (0.6, 0.8),
        ),
    ] = None
    allocator_roundup_power2_divisions: Annotated[
        Literal[1, 2, 4, 8, 16, 32, 64] | None,
        _allocator(
            "parts between powers of two that sizes are rounded up to",
            "any",
            "roundup_power2_divisions",
            (4, 8),
        ),
    ] = None


#: Every setting by its name in a configuration.
VARIABLES: dict[str, Variable] = {
    name: next(part for part in info.metadata if isinstance(part, Variable))
    for name, info in Environment.model_fields.items()
}

#: Other names of a variable, which would be read in its place.
ALIASES = {"PYTORCH_ALLOC_CONF": ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")}
SECTION = "environment"
_SOCKETS = 64
_BOUNDS = (("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"), ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS"))


def requested_settings(environment: Environment) -> KnobValues:
    """The settings that are given, by their names in a configuration."""
    settings = {name: getattr(environment, name) for name in VARIABLES}
    return {name: value for name, value in settings.items() if value is not None}


def text_of(name: str, value: Any) -> str:
    """A value as its variable, or its part of one, has it."""
    if isinstance(value, bool):
        return str(value) if VARIABLES[name].part else str(int(value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def variables(environment: Environment, at_start: bool = False) -> dict[str, str]:
    """Variables of a process; ``at_start``: only those that are read as a program starts."""
    settings: dict[str, str] = {}
    for name, value in requested_settings(environment).items():
        variable = VARIABLES[name]
        if at_start and variable.read != "start":
            continue
        if variable.part is None:
            settings[name] = text_of(name, value)
            continue
        key, part = variable.name or name, f"{variable.part}:{text_of(name, value)}"
        settings[key] = f"{settings[key]},{part}" if key in settings else part
    return settings


def rank_variables(environment: Environment, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables of a rank: those asked for and, with any of NCCL's, its log, which tells what it read.

    ``TUNING`` writes a line for each collective, so it is on only where the choice among algorithms is turned.
    """
    values = variables(environment)
    if any(name.startswith("NCCL_") for name in values) and "NCCL_DEBUG" not in environ:
        chosen = [",TUNING"] if values.keys() & {"NCCL_ALGO", "NCCL_PROTO"} else []
        values |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "".join(["INIT,ENV", *chosen])}
    return values


def take(values: Mapping[str, str]) -> None:
    """Make variables those of this process, before anything reads them."""
    for name, value in values.items():
        for alias in ALIASES.get(name, ()):
            os.environ.pop(alias, None)
        os.environ[name] = value


def process_value(name: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """What this process has of a setting; None if nothing."""
    variable = VARIABLES[name]
    if variable.part is None:
        return environ.get(name)
    parts = (part.partition(":") for part in environ.get(variable.name or name, "").split(","))
    return next((value for key, _, value in parts if key == variable.part), None)


def ineffective_reason(name: str, kind: str, ranks: int) -> str | None:
    """Why a setting has no effect on ranks of a kind of device (``cpu``, ``cuda``); None if it may have one."""
    acts = VARIABLES[name].acts
    if acts != "anywhere" and kind != "cuda":
        return f"acts on {'NCCL' if acts == 'nccl' else 'GPUs'} only, and ranks run on the CPU, over gloo"
    if acts == "nccl" and ranks == 1:
        return "acts between ranks only, and there is one"
    return None


def problems(environment: Environment) -> Iterator[LayoutError]:
    """What contradicts itself."""
    settings = requested_settings(environment)
    for low, high in _BOUNDS:
        if low in settings and high in settings and settings[low] > settings[high]:
            remedy = f"must not be above {high}={settings[high]}"
            yield LayoutError(f"{SECTION}.{low}", settings[low], remedy)
    if settings.get("NCCL_P2P_DISABLE") and "NCCL_P2P_LEVEL" in settings:
        remedy = "means nothing with NCCL_P2P_DISABLE=true; give one of them"
        yield LayoutError(f"{SECTION}.NCCL_P2P_LEVEL", settings["NCCL_P2P_LEVEL"], remedy)
    threads, sockets = (settings.get(name, 1) for name in ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"))
    if threads * sockets > _SOCKETS:
        remedy = f"times NCCL_NSOCKS_PERTHREAD={sockets} must be at most {_SOCKETS}"
        yield LayoutError(f"{SECTION}.NCCL_SOCKET_NTHREADS", threads, remedy)
