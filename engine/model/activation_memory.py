"""What becomes of a block's activations between its forward and its backward pass: computed again, or in host memory.

Of what is recomputed ``full`` keeps a block's input alone (arXiv 1604.06174). ``selective`` forgets the attention core
(arXiv 2205.05198, section 5): rotated queries and keys, scores, softmax, and the weighted values that the output matrix
reads. It keeps what the query, key and value matrices gave, so no matrix product is made twice. A fused kernel never
keeps scores; there ``selective`` saves the weighted values [sequence, batch, hidden] and one number a query. A schedule
that takes the gradients of matrices later needs the weighted values until then, and keeps them.

Activations go to host memory as in arXiv 2101.06840 and others. What autograd saves in a block is copied to the host
while the next block computes. When the backward pass reaches a block, that block's and the one before it come back, so
that a block's copies travel while the one behind it computes. Where the backward pass begins as soon as the last block
is through, that block's have no time to leave, and stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from engine.comm.host_values import wait_for_stream
from engine.config.run_config import RunConfig
from profilers import torch_private

Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True, slots=True)
class Activations:
    """What happens to a stage's activations between forward and backward.

    The first ``layers`` of the stage are recomputed (all with None); ``offload`` keeps what is left in host memory.
    """

    recompute: Recompute = "none"
    layers: int | None = None
    offload: bool = False

    def of_layer(self, place: int) -> Recompute:
        """The kind for the layer at this place in its stage, counted from 0."""
        return self.recompute if self.layers is None or place < self.layers else "none"


def activations_of(config: RunConfig) -> Activations:
    """What a configuration asks for."""
    memory = config.memory
    return Activations(memory.recompute, memory.recompute_layers, memory.offload in ("activations", "both"))


def again(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """``function(*arguments)``, of which only the arguments are kept for backward.

    Nothing in a model here is random, so no generator's state is kept. The second forward ends with the last tensor
    that backward needs: a matrix product at the end of ``function`` is not made again.
    """
    out: Tensor = checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
    return out


class Arriving(NamedTuple):
    """A copy on its way back to its device; computations that use it wait for ``event``."""

    tensor: Tensor
    event: torch.cuda.Event | None

    def wait(self) -> Tensor:
        """The tensor; what the current stream does next comes after the copy."""
        if self.event is not None:
            stream = torch.cuda.current_stream(self.tensor.device)
            stream.wait_event(self.event)
            self.tensor.record_stream(stream)
        return self.tensor


class HostCopies:
    """Down to pinned memory and up again, each direction on a stream of its own.

    Other devices have no memory apart from the host's: there a copy is a plain one, and saves nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        is_cuda = device.type == "cuda"
        self._streams = (torch.cuda.Stream(device), torch.cuda.Stream(device)) if is_cuda else None

    def down(self, flat: Tensor) -> Tensor:
        """A copy in the host's memory; use it through ``up`` alone."""
        if self._streams is None:
            return flat.clone()
        stream, _ = self._streams
        host = torch.empty_like(flat, device="cpu", pin_memory=True)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            host.copy_(flat, non_blocking=True)
        flat.record_stream(stream)
        return host

    def up(self, host: Tensor) -> Arriving:
        """Start copying back; comes after every ``down`` that was asked for before."""
        if self._streams is None:
            return Arriving(host.clone(), None)
        down, stream = self._streams
        stream.wait_stream(down)
        with torch.cuda.stream(stream):
            tensor = torch.empty_like(host, device=self._device)
            tensor.copy_(host, non_blocking=True)
        return Arriving(tensor, stream.record_event())


def on_host(tensor: Tensor) -> Tensor:
    """A copy in the host's memory, pinned where the tensor is on a GPU."""
    if not tensor.is_cuda:
        return tensor.detach().clone()
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor)


class HostGradients:
    """Brings gradients to where the weights are that they update."""

    def __init__(self) -> None:
        self._buffers: dict[int, Tensor] = {}

    def beside(self, weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
        """The gradients, each on its weight's device; their memory is used again by the next call."""
        moved = [
            self._beside(place, *pair) for place, pair in enumerate(zip(weights, gradients, strict=True))
        ]
        if self._buffers:
            wait_for_stream(torch.cuda.current_stream())
        return moved

    def _beside(self, place: int, weight: Tensor, gradient: Tensor) -> Tensor:
        if weight.device == gradient.device:
            return gradient
        if place not in self._buffers:
            self._buffers[place] = torch.empty_like(gradient, device="cpu", pin_memory=True)
        return self._buffers[place].copy_(gradient, non_blocking=True)


#: Smaller tensors stay on the device: each copy has a price of its own.
SMALLEST_BYTES = 4096
#: Operations whose result is a parameter in another form.
_FORMS = ("TBackward0", "TransposeBackward0", "ToCopyBackward0", "ViewBackward0", "_ZeroWhereEmptyBackward")


class Offload:
    """Runs blocks so that their activations leave the device."""

    def __init__(self, smallest_bytes: int = SMALLEST_BYTES) -> None:
        self._copies: HostCopies | None = None
        self._smallest = smallest_bytes
        #: Whether backward follows each :meth:`run` at once; then the last block keeps its activations.
        self.turns_at_once = False
        #: Bytes of activations that the latest :meth:`run` took away, and that it left on the device.
        self.host_bytes, self.device_bytes = 0, 0

    def run(self, blocks: Iterable[Callable[..., Tensor]], x: Tensor, resident: Tensor | None) -> Tensor:
        """``x`` through all blocks, each called as block(x, resident); ``resident`` itself stays where it is."""
        copies = self._copies = self._copies or HostCopies(x.device)
        before: _Parked | None = None
        counts = [(0, 0)]
        leaving = list(blocks)
        staying = leaving[-1:] if self.turns_at_once else []
        for block in leaving[: len(leaving) - len(staying)]:
            parked = _Parked(copies, before, resident, self._smallest)
            with saved_tensors_hooks(parked.pack, _unpack):
                x = block(x, resident)
            counts.append(parked.settle())
            before = parked
        for block in staying:
            x = block(x, resident)
            _fetch_early(x, before)
        self.host_bytes, self.device_bytes = (sum(sizes) for sizes in zip(*counts, strict=True))
        return x


def _fetch_early(x: Tensor, before: _Parked | None) -> None:
    """Bring a block's activations back when the backward of the one behind it, with the result ``x``, begins."""
    if before is not None and x.requires_grad:
        x.register_hook(lambda _: before.fetch())


class _Storage:
    """The memory of one or more saved tensors: on the host, and in backward on the device again."""

    def __init__(self, copies: HostCopies, flat: Tensor) -> None:
        self._copies, self._host = copies, copies.down(flat)
        self._back: Arriving | None = None

    def fetch(self) -> None:
        if self._back is None:
            self._back = self._copies.up(self._host)

    def wait(self) -> Tensor:
        self.fetch()
        assert self._back is not None
        return self._back.wait()


class _Handle(NamedTuple):
    """What autograd keeps in place of a tensor."""

    storage: _Storage
    block: _Parked
    dtype: torch.dtype
    offset: int
    shape: torch.Size
    stride: tuple[int, ...]


class _Parked:
    """The saved tensors of one block. Tensors that share memory are copied once, and share it again."""

    def __init__(
        self, copies: HostCopies, before: _Parked | None, resident: Tensor | None, smallest: int
    ) -> None:
        self._copies, self.before, self._smallest = copies, before, smallest
        self._resident = None if resident is None else torch_private.memory_identity(resident)
        # With the memory itself: as long as the block computes, an address must not be given out again.
        self._seen: dict[tuple[int, int], tuple[_Storage, Tensor]] = {}
        self._left: dict[int, int] = {}
        self._storages: list[_Storage] = []

    def pack(self, tensor: Tensor) -> Tensor | _Handle:
        storage = tensor.untyped_storage()
        address = torch_private.memory_identity(tensor)
        if is_weight(tensor) or address == self._resident:
            return tensor
        if storage.nbytes() < self._smallest:
            self._left[address] = storage.nbytes()
            return tensor
        key = address, torch_private.version_of(tensor)
        if key not in self._seen:
            flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            self._seen[key] = _Storage(self._copies, flat), flat
        place = int(tensor.storage_offset()), tensor.shape, tensor.stride()
        return _Handle(self._seen[key][0], self, tensor.dtype, *place)

    def settle(self) -> tuple[int, int]:
        """The block's forward is over; returns the bytes that went to the host and those that stay."""
        taken, left = sum(flat.numel() for _, flat in self._seen.values()), sum(self._left.values())
        self._storages = [storage for storage, _ in self._seen.values()]
        self._seen, self._left = {}, {}
        return taken, left

    def fetch(self) -> None:
        """Start bringing everything back; from then on it lives as long as autograd needs it."""
        for storage in self._storages:
            storage.fetch()
        self._storages = []


def _unpack(kept: Tensor | _Handle) -> Tensor:
    if isinstance(kept, Tensor):
        return kept
    kept.block.fetch()
    if kept.block.before is not None:
        kept.block.before.fetch()
    back = kept.storage.wait()
    empty = torch.empty(0, dtype=kept.dtype, device=back.device)
    return empty.set_(back.untyped_storage(), kept.offset, kept.shape, kept.stride)


def is_weight(tensor: Tensor) -> bool:
    """Whether a tensor is a parameter, or one in another form: parameters stay on their device anyway."""
    node: Any = tensor.grad_fn
    while node is not None and node.name() in _FORMS:
        node = node.next_functions[0][0]
    return isinstance(tensor if node is None else getattr(node, "variable", None), nn.Parameter)
