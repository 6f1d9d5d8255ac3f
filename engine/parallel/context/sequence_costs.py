"""What a group of ranks takes for some documents (section 3 of FlexSP, arXiv 2412.01523). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from engine.config.layout import sequence_degrees
from engine.config.run_config import RunConfig
from engine.footprint.flops import model_flops_per_step, workload_of

#: By formula a byte that is exchanged counts as so many operations: more than over NVLink, fewer than over Ethernet.
_OPERATIONS_A_BYTE = 1000.0
#: And what a micro-batch or an exchange takes whatever is in it, as so many tokens.
_FIXED_TOKENS = 64.0


@dataclass(frozen=True)
class SequenceCosts:
    """Seconds of a forward and backward: of attention for each token squared, of all else for each token, and of every
    micro-batch; on one rank. Attention is called for each document by itself, which takes every rank of its group
    ``document_seconds``. All-to-alls move ``token_bytes`` of each token, less what a rank keeps, at
    ``bandwidth[degree]`` bytes a second and rank, and add ``latency[degree]`` seconds to a micro-batch. All that is
    times ``factors[degree]``, where steps showed one.
    """

    square_seconds: float
    token_seconds: float
    fixed_seconds: float
    token_bytes: float = 0.0
    bandwidth: Mapping[int, float] = field(default_factory=dict)
    latency: Mapping[int, float] = field(default_factory=dict)
    document_seconds: float = 0.0
    factors: Mapping[int, float] = field(default_factory=dict)

    def document(self, length: int, degree: int) -> float:
        """Seconds that a document adds to a group of so many ranks."""
        computed = (
            self.square_seconds * length + self.token_seconds
        ) * length / degree + self.document_seconds
        if degree > 1:
            computed += self.token_bytes * length * (degree - 1) / degree**2 / self.bandwidth[degree]
        return computed * self.factors.get(degree, 1.0)

    def base_seconds(self, degree: int) -> float:
        """Seconds of a micro-batch whatever is in it."""
        return (self.fixed_seconds + self.latency.get(degree, 0.0)) * self.factors.get(degree, 1.0)

    def group(self, lengths: Iterable[int], degree: int) -> float:
        """Seconds of a group with these documents."""
        return self.base_seconds(degree) + sum(self.document(length, degree) for length in lengths)

    def as_document(self) -> dict[str, Any]:
        """Plain values, for records."""
        return {
            "square_seconds": self.square_seconds,
            "token_seconds": self.token_seconds,
            "document_seconds": self.document_seconds,
            "fixed_seconds": self.fixed_seconds,
            "token_bytes": self.token_bytes,
            "bandwidth": {str(degree): value for degree, value in self.bandwidth.items()},
            "latency": {str(degree): value for degree, value in self.latency.items()},
        }


def costs_by_formula(config: RunConfig, token_bytes: float) -> SequenceCosts:
    """In operations, for seconds: nothing that is measured, so that a plan is the same whenever it is made."""
    work = replace(workload_of(config), global_batch=1)
    first, second = (model_flops_per_step(replace(work, sequence_length=length)) for length in (1, 2))
    square = (second - 2 * first) / 2
    token = first - square
    shared = sequence_degrees(config)[1:]
    return SequenceCosts(
        square,
        token,
        _FIXED_TOKENS * token,
        token_bytes,
        dict.fromkeys(shared, 1 / _OPERATIONS_A_BYTE),
        dict.fromkeys(shared, _FIXED_TOKENS * token),
    )
