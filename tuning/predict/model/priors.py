"""What constants are believed to be before anything is measured, and how far a fit may move each of them."""

from __future__ import annotations

from collections.abc import Mapping

from tuning.predict.model.constants import Constants

#: ``gemm_share`` is held, not fitted: a fit to small models alone would trade it for their launches and extrapolate
#: to more than a device can do. 0.78 of the peak is what large products reach on an A100; benchmarks/prediction.py
#: prints what another value does to its tables.
START = Constants(
    gemm_share=0.78, gemm_half_width=150.0, block_passes=8.0, attention_share=0.35, shard_edge=0.3
)

#: Standard deviation of each belief as a natural logarithm: 0.7 is a factor of two.
FREE: Mapping[str, float] = {
    "gemm_half_width": 0.4,
    "attention_share": 0.3,
    "memory_share": 0.1,
    "block_passes": 0.3,
    "score_passes": 0.3,
    "block_seconds": 1.0,
    "inside_share": 0.15,
    "between_share": 0.3,
    "inside_seconds": 1.0,
    "between_seconds": 1.0,
    "message_share": 0.4,
    "hidden_share": 0.5,
    "shard_hidden_share": 0.3,
    "shard_edge": 0.7,
    "update_passes": 0.4,
    "step_seconds": 1.0,
    "piped_seconds": 2.5,
    "spread": 0.5,
}
