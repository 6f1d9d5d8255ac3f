"""Matrix products in which each group of rows has a matrix of its own: one grouped GEMM, or a loop over groups."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from engine import on_host
from engine.workloads.autograd import apply

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_ALIGNMENT_BYTES = 16
_FIRST_CAPABILITY = (8, 0)


def grouped_linear(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """Rows [rows, in] sorted by group, weight [groups, out, in], rows of each group int64 [groups] -> [rows, out].

    Groups may be empty, all of them too; the counts have to sum to the number of rows. It computes in the dtype of
    ``x``; of wider matrices no copy is kept for backward.
    """
    if x.dtype != weight.dtype:
        return apply(_CastGroupedLinear, x, weight, counts)
    if not has_grouped_gemm(x, weight):
        return looped_linear(x, weight, counts)
    if x.is_cuda:
        weight = apply(_ZeroWhereEmpty, weight, counts)
    offsets = counts.cumsum(0, dtype=torch.int32)
    return apply(_DenseGradient, F.grouped_mm(x, weight.transpose(1, 2), offs=offsets))


def looped_linear(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """The same by one product a group; it waits for the counts."""
    parts = x.split(on_host.numbers(counts))
    return torch.cat([F.linear(part, matrix) for part, matrix in zip(parts, weight.unbind(0), strict=True)])


def batched_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Equally large groups [groups, rows, in], weight [groups, out, in] -> [groups, rows, out], in ``x``'s dtype."""
    return apply(_BatchedLinear, x, weight)


def has_grouped_gemm(x: Tensor, weight: Tensor) -> bool:
    """Whether torch has a grouped GEMM for these: 2.10 or later, a CPU or an NVIDIA GPU from Ampere on, a dtype
    of 16 or 32 bits, and rows of whole 16 bytes on both sides.
    """
    aligned = all(width * x.element_size() % _ALIGNMENT_BYTES == 0 for width in weight.shape[1:])
    # torch.compile's own account of the operator refuses every dtype but this one.
    dtypes = (torch.bfloat16,) if torch.compiler.is_compiling() else _DTYPES
    known = hasattr(F, "grouped_mm") and x.dtype in dtypes and x.dtype == weight.dtype
    return aligned and known and x.shape[0] > 0 and _device_has_it(x.device)


def _device_has_it(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.version.hip is None and torch.cuda.get_device_capability(device) >= _FIRST_CAPABILITY
    return device.type == "cpu"


class _BatchedLinear(torch.autograd.Function):
    """Its weight's gradient comes in the weight's own layout; that of a transposed bmm would be copied into it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.bmm(x, weight.to(x.dtype).transpose(1, 2))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        back = torch.bmm(gradient, weight.to(gradient.dtype))
        return back, torch.bmm(gradient.transpose(1, 2), x).to(weight.dtype)


class _CastGroupedLinear(torch.autograd.Function):
    """Casts its matrices in forward and again in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, counts)
        return grouped_linear(x, weight.to(x.dtype), counts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, counts = ctx.saved_tensors
        narrow, gradient = weight.to(x.dtype), gradient.contiguous()
        back = grouped_linear(gradient, narrow.transpose(1, 2), counts)
        return back, _grouped_weight_gradient(gradient, x, narrow, counts).to(weight.dtype), None


def _grouped_weight_gradient(gradient: Tensor, x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """[groups, out, in] from the gradient of the product [rows, out] and its input [rows, in], sorted by group."""
    if not has_grouped_gemm(x, weight):
        sizes = on_host.numbers(counts)
        pairs = zip(gradient.split(sizes), x.split(sizes), strict=True)
        return torch.stack([of_out.t() @ rows for of_out, rows in pairs])
    found: Tensor = F.grouped_mm(gradient.t(), x, offs=counts.cumsum(0, dtype=torch.int32))
    return found.masked_fill((counts == 0).view(-1, 1, 1), 0.0) if x.is_cuda else found


class _DenseGradient(torch.autograd.Function):
    """Identity: the grouped GEMM's backward refuses an expanded gradient, such as that of a sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.contiguous()


class _ZeroWhereEmpty(torch.autograd.Function):
    """Identity on weights: an empty group's gradient is zero.

    On Blackwell torch's kernel leaves it unwritten (pytorch issue 172439).
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, counts: Tensor) -> Tensor:
        ctx.save_for_backward(counts)
        return weight.view_as(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (counts,) = ctx.saved_tensors
        return gradient.masked_fill((counts == 0).view(-1, 1, 1), 0.0), None
