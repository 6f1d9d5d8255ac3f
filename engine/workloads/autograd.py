"""A typed way into torch's custom autograd functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    """``function.apply(*arguments)`` of a function with one tensor as its result."""
    result: Tensor = function.apply(*arguments)
    return result
