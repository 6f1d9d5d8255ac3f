"""The methods of compression that benchmarks of communication compare, and the decoder whose gradients they send."""

from __future__ import annotations

from typing import Any

RANKS = 4
#: Eight blocks of attention and a gated feed-forward on 256 kinds of tokens: about 10 million parameters.
MODEL = {"layers": 8, "hidden": 320, "heads": 8, "kv_heads": 8, "ffn_hidden": 864, "vocabulary": 256}
PLAIN = "none"
#: Name -> the values of ``compression.*``.
METHODS: dict[str, dict[str, Any]] = {
    PLAIN: {"method": "none"},
    "fp16": {"method": "fp16"},
    "bf16": {"method": "bf16"},
    "int8": {"method": "int8"},
    "int4": {"method": "int4"},
    "topk 1 %": {"method": "topk", "ratio": 0.01},
    "randomk 1 %": {"method": "randomk", "ratio": 0.01},
    "powersgd 2": {"method": "powersgd", "rank": 2},
    "powersgd 4": {"method": "powersgd", "rank": 4},
    "powersgd 8": {"method": "powersgd", "rank": 8},
    "powersgd 16": {"method": "powersgd", "rank": 16},
    "sign": {"method": "sign"},
}
