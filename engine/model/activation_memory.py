"""What becomes of a block's activations between its forward and its backward pass: computed again, or elsewhere.

Of what is recomputed ``full`` keeps a block's input alone (arXiv 1604.06174). ``selective`` forgets the attention core
(arXiv 2205.05198, section 5): rotated queries and keys, scores, softmax, and the weighted values that the output matrix
reads. It keeps what the query, key and value matrices gave, so no matrix product is made twice. A fused kernel never
keeps scores; there ``selective`` saves the weighted values [sequence, batch, hidden] and one number a query. A schedule
that takes the gradients of matrices later needs the weighted values until then, and keeps them.

Activations go to host memory as in arXiv 2101.06840 and others, or to disk. What autograd saves in a block is copied
while the next block computes; the next one leaves once that is done, so that one at a time is in transit. When the
backward pass begins on the last block the nearest block that left comes back, and when it reaches that one, the one
that left before it: copies travel while blocks behind them compute. Where all blocks leave and the backward pass begins
as soon as the last block is through, that block's have no time to leave, and stay.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from engine.comm.host_values import wait_for_stream
from engine.config.run_config import RunConfig
from engine.config.sections import BlockAction
from engine.footprint.activations import SMALLEST_BYTES
from engine.model.copies import Copies, DiskCopies, OffloadedCopy, PendingCopy, host_copies
from profilers import torch_private

Recompute = Literal["none", "selective", "full"]


#: Where a block's activations wait.
Tier = Literal["host", "disk"]
_TIERS: dict[BlockAction, Tier] = {"offload": "host", "disk": "disk"}


@dataclass(frozen=True, slots=True)
class Activations:
    """What happens to a stage's activations between forward and backward.

    The first ``layers`` of the stage are recomputed (all with None); ``offload`` keeps what is left in host memory.
    With ``actions``, one for each block of the whole model, those hold instead. ``sampled`` is the share of tokens that
    matrices keep of their input, ``sliced`` that of heads and width which a step trains, ``seed`` that of the draws.
    """

    recompute: Recompute = "none"
    layers: int | None = None
    offload: bool = False
    actions: tuple[BlockAction, ...] | None = None
    sampled: float = 1.0
    sliced: float = 1.0
    seed: int = 0

    def block_kind(self, place: int, number: int) -> Recompute:
        """The kind for the block at this place in its stage and with this number in the model, counted from 0."""
        if self.actions is not None:
            action = self.actions[number]
            return action if action in ("selective", "full") else "none"
        return self.recompute if self.layers is None or place < self.layers else "none"

    def tiers(self, numbers: Iterable[int]) -> list[Tier | None]:
        """Where the activations of these blocks go."""
        if self.actions is None:
            return ["host" if self.offload else None for _ in numbers]
        return [_TIERS.get(self.actions[number]) for number in numbers]

    def offload_of(self, numbers: Iterable[int], before: Offload | None) -> Offload | None:
        """What runs these blocks if any leaves, as ``before`` if that is there."""
        tiers = self.tiers(numbers)
        if not any(tiers):
            if before is not None:
                before.close()
            return None
        offload = before or Offload()
        offload.tiers = tiers if self.actions is not None else None
        return offload


def activations_of(config: RunConfig) -> Activations:
    """What a configuration asks for."""
    memory = config.memory
    actions = None if memory.block_actions is None else tuple(memory.block_actions)
    offloads = memory.offload in ("activations", "both")
    return Activations(
        memory.recompute,
        memory.recompute_layers,
        offloads,
        actions,
        memory.sample_tokens,
        config.train.slice_keep,
        config.train.seed,
    )


def recompute_in_backward(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """``function(*arguments)``, of which only the arguments are kept for backward.

    Nothing in a model here is random, so no generator's state is kept. The second forward ends with the last tensor
    that backward needs: a matrix product at the end of ``function`` is not made again.
    """
    out: Tensor = checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
    return out


def copy_to_host(tensor: Tensor) -> Tensor:
    """A copy in the host's memory, pinned where the tensor is on a GPU."""
    if not tensor.is_cuda:
        return tensor.detach().clone()
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor)


class HostGradients:
    """Brings gradients to where the weights are that they update."""

    def __init__(self) -> None:
        self._buffers: dict[int, Tensor] = {}

    def move_to_weights(self, weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
        """The gradients, each on its weight's device; their memory is used again by the next call."""
        moved = [
            self._match_device(place, *pair)
            for place, pair in enumerate(zip(weights, gradients, strict=True))
        ]
        if self._buffers:
            wait_for_stream(torch.cuda.current_stream())
        return moved

    def _match_device(self, place: int, weight: Tensor, gradient: Tensor) -> Tensor:
        if weight.device == gradient.device:
            return gradient
        if place not in self._buffers:
            self._buffers[place] = torch.empty_like(gradient, device="cpu", pin_memory=True)
        return self._buffers[place].copy_(gradient, non_blocking=True)


#: Operations whose result is a parameter in another form.
_FORMS = ("TBackward0", "TransposeBackward0", "ToCopyBackward0", "ViewBackward0", "_ZeroWhereEmptyBackward")


class Offload:
    """Runs blocks so that the activations of all, or of some, leave the device."""

    def __init__(self, smallest_bytes: int = SMALLEST_BYTES) -> None:
        self._copies: dict[Tier, Copies] = {}
        self._smallest = smallest_bytes
        self._departure: Callable[[], None] | None = None
        #: Whether backward follows each :meth:`run` at once; then the last block keeps its activations if all leave.
        self.turns_at_once = False
        #: Where each block's activations go; None: all of them to the host.
        self.tiers: Sequence[Tier | None] | None = None
        #: Where files are.
        self.folder = Path()
        #: Bytes of activations that the latest :meth:`run` took away, and that it left on the device in those blocks.
        self.host_bytes, self.device_bytes = 0, 0

    def run(self, blocks: Iterable[Callable[..., Tensor]], x: Tensor, resident: Tensor | None) -> Tensor:
        """``x`` through all blocks, each called as block(x, resident); ``resident`` itself stays where it is."""
        before: weakref.ref[OffloadedBlock] | None = None
        self.host_bytes = self.device_bytes = 0
        steps = list(blocks)
        for block, tier in zip(steps, self.tiers_of(len(steps)), strict=True):
            if tier is None:
                x = block(x, resident)
                continue
            parked = OffloadedBlock(self.copies(tier, x.device), before, resident, self._smallest)
            with saved_tensors_hooks(parked.pack, _unpack):
                x = block(x, resident)
            if self._leaves(parked):
                before = weakref.ref(parked)
        _fetch_early(x, before)
        return x

    def tiers_of(self, blocks: int) -> Sequence[Tier | None]:
        """Where the activations of each of so many blocks go."""
        if self.tiers is not None:
            return self.tiers
        tiers: list[Tier | None] = ["host"] * blocks
        if self.turns_at_once:
            tiers[-1:] = [None]
        return tiers

    def copies(self, tier: Tier, device: torch.device) -> Copies:
        """Made when they are first asked for."""
        if tier not in self._copies:
            is_disk = tier == "disk"
            self._copies[tier] = DiskCopies(device, self.folder) if is_disk else host_copies(device)
        return self._copies[tier]

    def take(self, tier: Tier, copies: Copies) -> None:
        """Use these copies from now on."""
        self._copies[tier] = copies

    def wait(self) -> None:
        """Until what left last is gone."""
        if self._departure is not None:
            self._departure()
            self._departure = None

    def close(self) -> None:
        """Nothing leaves any more."""
        for copies in self._copies.values():
            copies.close()
        self._copies, self._departure = {}, None

    def _leaves(self, parked: OffloadedBlock) -> bool:
        """Whether anything of a block does, once the one before it is gone."""
        self.wait()
        moved, remaining, self._departure = parked.settle()
        self.host_bytes += moved
        self.device_bytes += remaining
        return moved > 0


def _fetch_early(x: Tensor, before: weakref.ref[OffloadedBlock] | None) -> None:
    """Bring a block's activations back when the backward of the blocks, with the result ``x``, begins."""
    if before is not None and x.requires_grad:
        x.register_hook(lambda _: _fetch(before))


def _fetch(before: weakref.ref[OffloadedBlock] | None) -> None:
    parked = None if before is None else before()
    if parked is not None:
        parked.fetch()


class _Handle(NamedTuple):
    """What autograd keeps in place of a tensor. Together they keep their block's copies alive, and nobody else does."""

    storage: int
    block: OffloadedBlock
    dtype: torch.dtype
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]


class _SavedStorage(NamedTuple):
    """A storage as bytes, one of the tensors in it, and that one's version when it was saved."""

    flat: Tensor
    tensor: Tensor
    version: int


class OffloadedBlock:
    """The saved tensors of one block. Tensors that share memory are copied once, and share it again."""

    def __init__(
        self,
        copies: Copies,
        before: weakref.ref[OffloadedBlock] | None,
        resident: Tensor | None,
        smallest: int,
    ) -> None:
        self._copies, self._before, self._smallest = copies, before, smallest
        self._resident = None if resident is None else torch_private.memory_identity(resident)
        # With the memory itself: as long as the block computes, an address must not be given out again.
        self._seen: dict[int, _SavedStorage] = {}
        self._left: dict[int, int] = {}
        self._away: OffloadedCopy | None = None
        self._coming: PendingCopy | None = None
        self._back: list[Tensor] = []

    def pack(self, tensor: Tensor) -> Tensor | _Handle:
        """A handle of a tensor that will leave."""
        storage = tensor.untyped_storage()
        address = torch_private.memory_identity(tensor)
        if is_weight(tensor) or address == self._resident:
            return tensor
        if storage.nbytes() < self._smallest:
            self._left[address] = storage.nbytes()
            return tensor
        if address not in self._seen:
            flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            self._seen[address] = _SavedStorage(flat, tensor.detach(), torch_private.version_of(tensor))
        place = int(tensor.storage_offset()), tensor.shape, tensor.stride()
        return _Handle(list(self._seen).index(address), self, tensor.dtype, *place)

    def settle(self) -> tuple[int, int, Callable[[], None] | None]:
        """The block's forward is over, and what it saved begins to leave: the bytes that go and those that stay, and
        what waits until all of it is gone.

        Raises:
            RuntimeError: the block wrote over what it had saved.
        """
        for saved in self._seen.values():
            if torch_private.version_of(saved.tensor) != saved.version:
                raise RuntimeError("a block changed a tensor in place that its backward needs as it was")
        flats, left_bytes = [saved.flat for saved in self._seen.values()], sum(self._left.values())
        self._seen, self._left = {}, {}
        if not flats:
            return 0, left_bytes, None
        self._away = self._copies.start_offload(flats)
        return self._away.nbytes, left_bytes, self._away.leave()

    def fetch(self) -> None:
        """Start bringing everything back; from then on it lives as long as autograd needs it."""
        if self._coming is None and self._away is not None:
            self._coming, self._away = self._copies.start_fetch(self._away), None

    def back(self, storage: int) -> Tensor:
        """A storage that is there again; then the block that left before comes, too."""
        if not self._back:
            self.fetch()
            assert self._coming is not None
            self._back = self._coming.wait()
            _fetch(self._before)
        return self._back[storage]


def _unpack(stored: Tensor | _Handle) -> Tensor:
    if isinstance(stored, Tensor):
        return stored
    back = stored.block.back(stored.storage)
    empty = torch.empty(0, dtype=stored.dtype, device=back.device)
    return empty.set_(back.untyped_storage(), stored.offset, stored.shape, stored.stride)


def is_weight(tensor: Tensor) -> bool:
    """Whether a tensor is a parameter, or one in another form: parameters stay on their device anyway."""
    node: Any = tensor.grad_fn
    while node is not None and node.name() in _FORMS:
        node = node.next_functions[0][0]
    return isinstance(tensor if node is None else getattr(node, "variable", None), nn.Parameter)
