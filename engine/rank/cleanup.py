"""What a warm worker does between two runs, so that the next one finds memory as the first one did."""

from __future__ import annotations

import gc

import torch

from profilers.system.memory import give_back_freed

#: Each but the last finds what the one before let go of; two have been enough.
_MOST_COLLECTIONS = 5


def free() -> None:
    """Free what the last run made; in this order, since each can give back only what the one before let go of.

    Circles of Python objects, the device's cached blocks, pinned memory, and the C library's freed blocks. What is
    cached counts as reserved in the next run, and what is freed but resident counts in its peak. Blocks until a GPU
    has done all that it was given: not for a worker that still has to tell of a failure.
    """
    _collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        _empty_pinned_cache()
        torch.cuda.reset_peak_memory_stats()
    give_back_freed()


def _collect() -> None:
    """A tensor in a circle that C++ holds too, as FSDP2's are, outlives the collection that finds it: only the next
    one frees it.
    """
    for _ in range(_MOST_COLLECTIONS):
        if not gc.collect():
            return


def _empty_pinned_cache() -> None:
    """https://docs.pytorch.org/docs/stable/generated/torch.accelerator.memory.empty_host_cache.html"""
    empty = getattr(torch.accelerator, "empty_host_cache", None)
    if empty is not None:
        empty()
