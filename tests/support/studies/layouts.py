"""Configurations drawn at random, legal and not, of the axes that plans turn."""

from __future__ import annotations

import random
from typing import get_args

from engine.config.run_config import RunConfig, parse
from engine.config.sections import TensorPart

MODELS = ("tiny", "350m", "1b", "7b", "22b")


def draw(random_: random.Random, model: str | None = None) -> RunConfig:
    """Any of them; most break some rule."""
    tp, parts = random_.choice([1, 2, 4, 6]), random_.sample(get_args(TensorPart), random_.randint(1, 6))
    chunks, precision = random_.choice([1, 1, 2, 3, 4]), random_.choice(["fp32", "bf16"])
    return parse(
        {
            "model": {"preset": model or random_.choice(MODELS)},
            "data": {"sequence_length": random_.choice([128, 2048])},
            "parallel": {
                "dp": random_.choice([1, 2, 3, 4, 8]),
                "tp": tp,
                "tp_replicated": parts if tp > 1 and random_.random() < 0.3 else None,
                "pp": random_.choice([1, 2, 4, 5, 8]),
                "zero_stage": random_.randrange(4),
            },
            "batch": {"micro_batch": random_.choice([1, 2, 4]), "global_batch": random_.choice([32, 64, 96])},
            "schedule": {"kind": "interleaved" if chunks > 1 else "1f1b", "chunks": chunks},
            "precision": precision,
            "memory": {
                "parameters": random_.choice(["fp32", precision]),
                "recompute": random_.choice(["none", "selective", "full"]),
            },
        }
    )
