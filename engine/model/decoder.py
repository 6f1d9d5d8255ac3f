"""A Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU; any slice of its layers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from engine.comm.channel import Channel
from engine.config.formulas.tied_parameters import Sharing
from engine.config.presets import ModelShape
from engine.model.activation_memory import Activations, Recompute, recompute_in_backward
from engine.model.axes import Axes, Deferral, TensorAxis
from engine.model.column_lookup import column_rows, my_columns
from engine.model.data import BORDER
from engine.model.experts.mixture import Mixture, MixtureShape, Text, initial_values, initialize_mixture
from engine.model.linear import RingSlice, apply, linear, ring_slice, sliced_linear
from engine.model.row_sampling import RowSampler, SampledProducts
from engine.model.stage import Stage

_ROTARY_BASE = 10000.0
#: Products of a block that draw rows by themselves.
_PARTS = 4


class Linear(nn.Module):
    """A matrix [out, in] without bias, split over tp along ``tp_dim``: 0 gives columns of outputs, 1 partial sums.
    With None every rank has all of it.

    It computes in its input's dtype: parameters stay fp32, bf16 activations make bf16 products.
    """

    def __init__(self, outputs: int, inputs: int, tp: TensorAxis, tp_dim: int | None) -> None:
        super().__init__()
        self.tp_dim = tp_dim
        shape = [outputs, inputs]
        if tp_dim is not None:
            shape[tp_dim] //= tp.size
        self.weight = nn.Parameter(torch.empty(shape))
        self.deferred: Deferral | None = None
        self.part: RingSlice | None = None
        #: Trained beside a frozen matrix, and added to its product.
        self.side: nn.Module | None = None

    def take(self, part: RingSlice | None) -> None:
        """What training uses of the matrix from the next forward on; data parallelism sends no more of its gradient."""
        self.part = self.weight.part = part  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        if self.part is not None and torch.is_grad_enabled():
            return sliced_linear(x, self.weight, self.part)
        if self.deferred is not None:
            return self.deferred.linear(x, self.weight)
        product = linear(x, self.weight)
        return product if self.side is None else product + self.side(x)


class Norm(nn.Module):
    """RMSNorm (arXiv 1910.07467) computed in fp32; replicated over tp, its gradient partial under it."""

    tp_dim = None

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] -> the same shape and dtype."""
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight.float(), eps=1e-5).to(x.dtype)


class Embedding(nn.Module):
    """Rows [vocabulary / tp, hidden]; tokens outside this rank's part give zeros, summed over tp. Or, replicated, all
    rows on every rank, which looks up its slice of the sequence. With ``columns``, which goes without tp, ranks with
    other tokens hold hidden / ranks columns each, and look up what all of them ask for (``column_lookup.py``).
    """

    def __init__(
        self, shape: ModelShape, tp: TensorAxis, dtype: torch.dtype, columns: Channel | None = None
    ) -> None:
        super().__init__()
        self.tp, self.dtype, self.columns = tp, dtype, columns
        self.tp_dim = _split_dim(tp, "embedding", 0)
        rows = shape.vocabulary // tp.select_axis("embedding").size
        width = shape.hidden // (1 if columns is None else columns.size)
        self.weight = nn.Parameter(torch.empty(rows, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, sequence / cp] -> [sequence / (cp * tp), batch, hidden]."""
        tokens = tokens.transpose(0, 1)
        if self.columns is not None:
            return column_rows(self.weight, tokens, self.columns, self.dtype)
        if self.tp_dim is None:
            tokens = self.tp.my_slice(tokens)
        if self.tp_dim is None or self.tp.size == 1:
            return _rows(self.weight, tokens).to(self.dtype)
        local = tokens - self.tp.rank * self.weight.shape[0]
        is_local = (local >= 0) & (local < self.weight.shape[0])
        rows = _rows(self.weight, local.clamp(0, self.weight.shape[0] - 1))
        return self.tp.scatter_sequence((rows * is_local.unsqueeze(-1)).to(self.dtype))


class Attention(nn.Module):
    """Grouped-query attention (arXiv 2305.13245); heads are split over tp, the sequence over cp."""

    def __init__(self, shape: ModelShape, axes: Axes) -> None:
        super().__init__()
        self.context, self.head_dim, self.forgets = axes.context, shape.head_dim, False
        tp = axes.tensor
        self.tp = tp
        columns = _split_dim(tp, "query_key_value", 0)
        kv_width = shape.kv_heads * shape.head_dim
        self.query = Linear(shape.hidden, shape.hidden, tp, columns)
        self.key = Linear(kv_width, shape.hidden, tp, columns)
        self.value = Linear(kv_width, shape.hidden, tp, columns)
        self.output = Linear(shape.hidden, shape.hidden, tp, _split_dim(tp, "attention_output", 1))
        self.sampled_inputs: SampledProducts | None = None
        self.sampled_output: SampledProducts | None = None

    def sample(self, sampler: RowSampler | None, index: int) -> None:
        """What the next forwards keep. Over cp, and where the core is computed again, the output matrix's input is kept
        or made anyway.
        """
        self.sampled_inputs = None if sampler is None else SampledProducts(sampler, index)
        has_own = sampler is not None and self.context.size == 1 and not self.forgets
        self.sampled_output = SampledProducts(sampler, index + 1) if sampler is not None and has_own else None

    def slice(self, keep: float, seed: tuple[int, ...]) -> None:
        """Train a slice of this rank's heads, keys and values with the queries that read them; all of them with 1."""
        head_rows, groups = self.key.weight.shape[0], self.query.weight.shape[0] // self.key.weight.shape[0]
        for matrix, dim, heads in (
            (self.key, 0, 1),
            (self.value, 0, 1),
            (self.query, 0, groups),
            (self.output, 1, groups),
        ):
            matrix.take(ring_slice(head_rows // self.head_dim, keep, dim, heads * self.head_dim, seed))

    def forward(self, x: Tensor, rotary: Tensor, visible: Tensor | None = None) -> Tensor:
        """[sequence / (cp * tp), batch, hidden] -> the same."""
        matrices = self.query, self.key, self.value
        products = _columns(self.tp, "query_key_value", x, matrices, self.sampled_inputs)
        if self.query.tp_dim is None:
            products = self.tp.sequence_to_width(products)
        query, key, value = map(self._heads, products)
        core = query, key, value, rotary, visible
        if not self.forgets or not torch.is_grad_enabled():
            return self._out(self._mix(*core))
        if self.output.deferred is None and self.output.tp_dim is not None:
            return self.tp.scatter_sequence(recompute_in_backward(self._mixed_output, *core))
        return self._out(recompute_in_backward(self._mix, *core))

    def _out(self, mixed: Tensor) -> Tensor:
        """[sequence / cp, batch, hidden / tp] -> [sequence / (cp * tp), batch, hidden]."""
        if self.output.tp_dim is None:
            mixed = self.tp.width_to_sequence(mixed)
        return _rows_product(self.tp, "attention_output", mixed, self.output, self.sampled_output)

    def _mix(
        self, query: Tensor, key: Tensor, value: Tensor, rotary: Tensor, visible: Tensor | None
    ) -> Tensor:
        """Weighted values [sequence / cp, batch, hidden / tp]."""
        mixed = self.context.attend(_rotate(query, rotary), _rotate(key, rotary), value, visible)
        return mixed.permute(2, 0, 1, 3).flatten(2)

    def _mixed_output(self, *core: Any) -> Tensor:
        out: Tensor = self.output(self._mix(*core))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (-1, self.head_dim))
        return heads.permute(1, 2, 0, 3)


class FeedForward(nn.Module):
    """SwiGLU (arXiv 2002.05202); its width is split over tp."""

    def __init__(self, shape: ModelShape, tp: TensorAxis) -> None:
        super().__init__()
        self.tp = tp
        columns = _split_dim(tp, "gate_up", 0)
        self.gate = Linear(shape.ffn_hidden, shape.hidden, tp, columns)
        self.up = Linear(shape.ffn_hidden, shape.hidden, tp, columns)
        self.down = Linear(shape.hidden, shape.ffn_hidden, tp, _split_dim(tp, "down", 1))
        self.sampled_inputs: SampledProducts | None = None
        self.sampled_output: SampledProducts | None = None

    def sample(self, sampler: RowSampler | None, index: int) -> None:
        """What the next forwards keep."""
        self.sampled_inputs = None if sampler is None else SampledProducts(sampler, index)
        self.sampled_output = None if sampler is None else SampledProducts(sampler, index + 1)

    def slice(self, keep: float, seed: tuple[int, ...]) -> None:
        """Train a slice of this rank's width; all of it with 1."""
        for matrix, dim in ((self.gate, 0), (self.up, 0), (self.down, 1)):
            matrix.take(ring_slice(self.gate.weight.shape[0], keep, dim, 1, seed))

    def forward(self, x: Tensor) -> Tensor:
        """[sequence / (cp * tp), batch, hidden] -> the same."""
        gate, up = _columns(self.tp, "gate_up", x, (self.gate, self.up), self.sampled_inputs)
        wide = F.silu(gate) * up
        has_columns, takes_columns = self.gate.tp_dim is not None, self.down.tp_dim is not None
        if has_columns and not takes_columns:
            wide = self.tp.width_to_sequence(wide)
        elif takes_columns and not has_columns:
            (wide,) = self.tp.sequence_to_width([wide])
        return _rows_product(self.tp, "down", wide, self.down, self.sampled_output)


class Block(nn.Module):
    """Attention and feed-forward with their norms; may forget its activations and compute them again."""

    def __init__(
        self, shape: ModelShape, mixture: MixtureShape | None, axes: Axes, recompute: Recompute
    ) -> None:
        super().__init__()
        self.attention_norm, self.feed_forward_norm = Norm(shape.hidden), Norm(shape.hidden)
        self.attention = Attention(shape, axes)
        self.feed_forward = (
            FeedForward(shape, axes.tensor)
            if mixture is None
            else Mixture(mixture, axes.tensor, axes.expert, axes.data)
        )
        self._axis = axes.tensor
        self.keep(recompute)

    def keep(self, recompute: Recompute, sampler: RowSampler | None = None, number: int = 0) -> None:
        """What the next forwards of this block, which has this number in the model, forget or keep in part."""
        self.forgets, self.attention.forgets = recompute == "full", recompute == "selective"
        # With everything forgotten the second forward gathers again anyway.
        self.tp = self._axis.with_gathered_inputs() if self.forgets else self._axis
        self.attention.tp = self.feed_forward.tp = self.tp
        sampler = None if self.forgets else sampler
        self.attention.sample(sampler, _PARTS * number)
        if isinstance(self.feed_forward, FeedForward):
            self.feed_forward.sample(sampler, _PARTS * number + 2)

    def forward(self, x: Tensor, rotary: Tensor, visible: Tensor | None = None) -> Tensor:
        """[sequence / (cp * tp), batch, hidden] -> the same."""
        if self.forgets and torch.is_grad_enabled():
            return recompute_in_backward(self._compute, x, rotary, visible)
        return self._compute(x, rotary, visible)

    def _compute(self, x: Tensor, rotary: Tensor, visible: Tensor | None) -> Tensor:
        attended: Tensor = self.attention(self.attention_norm(x), rotary, visible)
        x = x + attended
        normed = self.feed_forward_norm(x)
        if isinstance(self.feed_forward, Mixture):
            return x + self.tp.scatter_sequence(self.feed_forward(self.tp.gather_sequence(normed)))
        fed: Tensor = self.feed_forward(normed)
        return x + fed


class Decoder(Stage):
    """Layers ``first`` to ``last`` of a decoder; the first stage embeds, the last one gives logits.

    Blocks are keyed by their global number, so parameter names do not depend on the pipeline split.
    """

    def __init__(
        self,
        shape: ModelShape,
        layers: range,
        axes: Axes,
        *,
        mixture: MixtureShape | None = None,
        sequence_length: int,
        masked: bool = False,
        longest: int | None = None,
        dtype: torch.dtype = torch.float32,
        activations: Activations | None = None,
    ) -> None:
        super().__init__()
        self.tp = tp = axes.tensor
        self.embedding = Embedding(shape, tp, dtype, axes.columns) if layers.start == 0 else None
        memory = activations or Activations()
        self.offload = memory.offload_of(layers, None)
        self.blocks = nn.ModuleDict(
            {str(i): Block(shape, mixture, axes, memory.block_kind(n, i)) for n, i in enumerate(layers)}
        )
        self.sampler: RowSampler | None = None
        self._data_rank = 0 if axes.data is None else axes.data.rank
        self._sample(memory)
        is_last = layers.stop == shape.layers
        self.norm = Norm(shape.hidden) if is_last else None
        self.head = Linear(shape.vocabulary, shape.hidden, tp, _split_dim(tp, "head", 0)) if is_last else None
        # Not a registered buffer: data parallelism would broadcast it with every first step.
        self.masked = masked
        self.context = axes.context
        self.positions = axes.context.positions(sequence_length)
        self.rotary = _rotary(self.positions, shape.head_dim)
        #: Of all places that documents of their real lengths may have.
        self._angles = self.rotary if longest is None else _rotary(torch.arange(longest), shape.head_dim)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens [batch, sequence / cp] or hidden states [sequence / (cp * tp), batch, hidden] in; hidden states or
        logits [sequence / cp, batch, vocabulary / tp] out, or [sequence / (cp * tp), batch, vocabulary] of a head
        that is replicated.
        """
        blocks: list[Callable[..., Tensor]] = list(self.blocks.values())
        if self.masked:
            visible = same_document(x)
            blocks = [functools.partial(block, visible=visible) for block in blocks]
        x = self._run_blocks(blocks, x)
        if torch.is_grad_enabled():
            for mixture in self.mixtures().values():
                assert mixture.report is not None
                if mixture.text is None or mixture.text.tokens:
                    mixture.load.add(mixture.report)
        return self.output_logits(x)

    def output_logits(self, x: Tensor) -> Tensor:
        """Logits of what the last block gives; what other stages give stays as it is."""
        if self.norm is not None and self.head is not None:
            (x,) = self.tp.select_axis("head").column_products(self.norm(x), (self.head,))
        return x

    def _run_blocks(self, blocks: Sequence[Callable[..., Tensor]], x: Tensor) -> Tensor:
        """What the last of this stage's blocks gives for the stage's input."""
        if self.offload is not None and torch.is_grad_enabled():
            # What enters has no name here, or it could not leave.
            return self.offload.run(blocks, self._embed(x), self.rotary)
        x = self._embed(x)
        for block in blocks:
            x = block(x, self.rotary)
        return x

    def _embed(self, x: Tensor) -> Tensor:
        return x if self.embedding is None else self.embedding(x)

    def mixtures(self) -> dict[int, Mixture]:
        """Those of its blocks that have experts, by their number in the whole model."""
        parts = {int(number): block.feed_forward for number, block in self.blocks.items()}
        return {number: part for number, part in parts.items() if isinstance(part, Mixture)}

    @property
    def device(self) -> torch.device:
        """Where its table of angles is."""
        return self.rotary.device

    def place(self, device: torch.device) -> None:
        """With its table of angles."""
        self.to(device)
        self.rotary, self._angles = self.rotary.to(device), self._angles.to(device)

    def read_at(self, places: Tensor, text: Text | None = None) -> None:
        """Next are tokens at these places of documents: int64 [tokens]; ``text`` is what experts are balanced by."""
        self.rotary = self._angles[:, places]
        for mixture in self.mixtures().values():
            mixture.text = text

    def units(self) -> list[nn.Module]:
        """Blocks, and what comes before and after them."""
        ends = [module for module in (self.embedding, self.norm, self.head) if module is not None]
        return [*self.blocks.values(), *ends]

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of logits, as ``forward`` gives them, and targets [batch, sequence / cp]."""
        targets = targets.transpose(0, 1)
        if "head" in self.tp.replicated:
            targets = self.tp.my_slice(targets)
            return self.tp.mean(
                self.tp.select_axis("head").cross_entropy(output.flatten(0, 1), targets.reshape(-1))
            )
        return self.tp.cross_entropy(output.flatten(0, 1), targets.reshape(-1))

    def keep(self, activations: Activations) -> None:
        """What blocks forget, and where they keep the rest, from the next forward on."""
        self.offload = activations.offload_of(self.numbers, self.offload)
        self._sample(activations)

    def begin_micro_batch(self, step: int, micro_batch: int, inputs: Tensor, targets: Tensor) -> None:
        """Rows are told apart by the token that follows; slices are the same in all of a step."""
        if step != self._sliced_at and self._keep < 1:
            self._slice(step)
        if self.sampler is not None:
            self.sampler.begin_micro_batch(step, micro_batch, targets)

    def _sample(self, activations: Activations) -> None:
        """What blocks keep; norms of gradients are remembered anew."""
        share, seed = activations.sampled, activations.seed
        self._keep, self._seed = activations.sliced, seed
        self._slice(0)
        self.sampler = RowSampler(share, seed, self._data_rank) if share < 1 else None
        for place, (number, block) in enumerate(zip(self.numbers, self.blocks.values(), strict=True)):
            assert isinstance(block, Block)
            block.keep(activations.block_kind(place, number), self.sampler, number)

    def _slice(self, step: int) -> None:
        """The same on all ranks that hold the same heads."""
        self._sliced_at = step
        for number, block in zip(self.numbers, self.blocks.values(), strict=True):
            assert isinstance(block, Block)
            block.attention.slice(self._keep, (self._seed, step, number, 0))
            if isinstance(block.feed_forward, FeedForward):
                block.feed_forward.slice(self._keep, (self._seed, step, number, 1))


def initialize(model: Decoder, seed: int, sharing: Sharing | None = None) -> None:
    """Fill parameters from their names and the seed alone: every layout starts from the same full tensors, and
    parameters that are to be one from the same one.
    """
    one_name = (sharing or Sharing()).name
    with torch.no_grad():
        for module_name, module in model.named_modules():
            name = one_name(f"{module_name}.weight").removesuffix(".weight")
            if isinstance(module, Mixture):
                initialize_mixture(module, name, seed)
            elif isinstance(module, (Linear, Embedding)):
                full = list(module.weight.shape)
                if module.tp_dim is not None:
                    full[module.tp_dim] *= model.tp.size
                columns = module.columns if isinstance(module, Embedding) else None
                if columns is not None:
                    full[1] *= columns.size
                values = model.tp.shard(initial_values(name, tuple(full), seed), module.tp_dim)
                module.weight.copy_(values if columns is None else my_columns(values, columns))


def _columns(
    tp: TensorAxis, part: str, x: Tensor, matrices: Sequence[Linear], sampled: SampledProducts | None
) -> tuple[Tensor, ...]:
    """Products of matrices whose columns are split over tp; backward keeps all of their input, or a sample of it."""
    if sampled is None or not torch.is_grad_enabled():
        return tp.select_axis(part).column_products(x, matrices)
    whole = tp.select_axis(part).gather_sequence(x)
    return sampled.products(whole, matrices, _slots(tp, whole, sampled))


def _rows_product(
    tp: TensorAxis, part: str, x: Tensor, matrix: Linear, sampled: SampledProducts | None
) -> Tensor:
    """The same of a matrix whose rows are split."""
    if sampled is None or not torch.is_grad_enabled():
        return tp.select_axis(part).row_product(x, matrix)
    return tp.select_axis(part).scatter_sequence(sampled.products(x, (matrix,), _slots(tp, x, sampled))[0])


def _slots(tp: TensorAxis, x: Tensor, sampled: SampledProducts) -> Tensor | None:
    """Of the rows of ``x``, which may be this rank's slice of the sequence."""
    slots = sampled.sampler.slots
    return slots if slots is None or len(slots) == len(x) else tp.my_slice(slots)


def _split_dim(tp: TensorAxis, part: str, dim: int) -> int | None:
    """Along which a part's matrices are split over tp; None where they are replicated."""
    return None if part in tp.replicated else dim


def _rows(weight: Tensor, tokens: Tensor) -> Tensor:
    """Rows [..., hidden] of ``weight`` [vocabulary, hidden]; their gradients add up in fp32."""
    return F.embedding(tokens, weight) if weight.dtype == torch.float32 else apply(_Rows, weight, tokens)


class _Rows(torch.autograd.Function):
    """One row may have thousands of gradients: summed in bf16 the small ones would be lost."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, tokens: Tensor) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.rows, ctx.dtype = weight.shape[0], weight.dtype
        return F.embedding(tokens, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (tokens,) = ctx.saved_tensors
        total = torch.ops.aten.embedding_dense_backward(gradient.float(), tokens, ctx.rows, -1, False)
        return total.to(ctx.dtype), None


def same_document(tokens: Tensor) -> Tensor:
    """Which keys a query sees: those up to its own that no document's first token parts from it. Tokens [batch,
    sequence] -> bool [batch, 1, sequence, sequence]. Angles between positions are relative, so none start again.
    """
    numbers = (tokens == BORDER).cumsum(1)
    same = numbers[:, None, :, None] == numbers[:, None, None, :]
    return same & torch.ones(same.shape[-2:], dtype=torch.bool, device=tokens.device).tril()


def _rotary(positions: Tensor, head_dim: int) -> Tensor:
    """Angles as cosine and sine [2, positions, head_dim / 2] (arXiv 2104.09864)."""
    rates = _ROTARY_BASE ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(positions.to(torch.float32), rates)
    return torch.stack((angles.cos(), angles.sin()))


def _rotate(x: Tensor, rotary: Tensor) -> Tensor:
    """Rotate [batch, heads, sequence, head_dim] by position, in fp32."""
    cosine, sine = rotary[0], rotary[1]
    first, second = x.float().chunk(2, dim=-1)
    rotated = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
    return rotated.to(x.dtype)
