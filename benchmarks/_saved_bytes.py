"""Counts what saved tensors hold: the most bytes at once of all that autograd, recomputation and copies keep."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any
from unittest import mock

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from engine.dry_run.fake_tensors import StorageRegistry
from engine.model.activation_memory import OffloadedBlock, is_weight
from engine.model.copies import DiskCopies, HostCopy, OffloadedCopy, PendingCopy, ThreadCopies
from profilers.torch_private import memory_identity


class SavedBytes:
    """While inside, every pair of hooks is watched. A saved tensor's memory counts for as long as it lives, whoever
    holds it; so does one that is still being copied away, and one that comes back counts from the moment on at which
    it was asked for and has left. Parameters and what is said to be ``resident`` do not count, nor does memory with the
    identities in ``weights``, which may grow meanwhile: parameters that are gathered when they are needed.
    """

    def __init__(self, *resident: Tensor, weights: Collection[int] = ()) -> None:
        self._besides, self._weights = {memory_identity(one) for one in resident}, weights
        self._noted, self._coming = StorageRegistry(), list[tuple[PendingCopy, int, Future[Any]]]()
        self._opened = ExitStack()
        #: In bytes.
        self.peak = 0

    def __enter__(self) -> SavedBytes:
        enter, found = saved_tensors_hooks.__enter__, self

        def watched(hooks: Any) -> None:
            hooks.pack_hook, hooks.unpack_hook = (
                found._pack(hooks.pack_hook),
                found._unpack(hooks.unpack_hook),
            )
            enter(hooks)

        self._opened.enter_context(mock.patch.object(saved_tensors_hooks, "__enter__", watched))
        for kind in (ThreadCopies, DiskCopies):
            self._opened.enter_context(mock.patch.object(kind, "start_fetch", self._up(kind.start_fetch)))
        self._opened.enter_context(saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor))
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def living(self) -> int:
        """Bytes that count now."""
        for coming, *_ in (done := [pair for pair in self._coming if pair[0]._found.done()]):  # type: ignore[attr-defined]
            for tensor in coming.wait():
                self._noted.note(tensor)
        self._coming = [pair for pair in self._coming if pair not in done]
        return self._noted.living_bytes(self._besides.union(self._weights)) + sum(
            size for _, size, left in self._coming if left.done()
        )

    def _count(self, tensor: Tensor) -> None:
        if not is_weight(tensor):
            self._noted.note(tensor)
        self.peak = max(self.peak, self.living())

    def _pack(self, pack: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
        def packed(tensor: Tensor) -> Any:
            kept = pack(tensor)
            # What a checkpoint notes instead of a tensor holds nothing.
            if isinstance(kept, Tensor) or isinstance(getattr(kept, "block", None), OffloadedBlock):
                self._count(tensor)
            return kept

        return packed

    def _unpack(self, unpack: Callable[[Any], Tensor]) -> Callable[[Any], Tensor]:
        def unpacked(kept: Any) -> Tensor:
            tensor = unpack(kept)
            self._count(tensor)
            return tensor

        return unpacked

    def _up(
        self, up: Callable[[Any, OffloadedCopy], PendingCopy]
    ) -> Callable[[Any, OffloadedCopy], PendingCopy]:
        def watched(copies: Any, away: OffloadedCopy) -> PendingCopy:
            left = away.copies if isinstance(away, HostCopy) else away.written  # type: ignore[attr-defined]
            size, coming = away.nbytes, up(copies, away)
            self._coming.append((coming, size, left))
            return coming

        return watched
