"""``engine.footprint.outside_allocator`` for a target, and for many layouts at a time; ranks on a CPU hold nothing of
it. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from engine.footprint.outside_allocator import Outside, asked, of_layout, outside_allocator
from tuning.predict.model.cases import Cases
from tuning.predict.model.headroom import NOTHING, Beside
from tuning.predict.target import Target

SAID = (
    "outside torch's allocator: a CUDA context and NCCL's buffers, counted from NCCL's source and believed channels; "
    "never measured by us: compare with what `workbench show` prints of a finished run"
)


def of(config: RunConfig, target: Target) -> Outside:
    """Of one rank."""
    return Outside() if target.on_cpu else outside_allocator(config)


def arrays(found: Sequence[Outside]) -> Beside:
    """One beside the other."""
    rows = np.array([(one.likely, one.low, one.high) for one in found], np.float64).reshape(-1, 3)
    return Beside(*rows.T)


def of_cases(cases: Cases, base: RunConfig, target: Target) -> Beside:
    """Of layouts of a plan: ``base`` with other dp, tp, pp and ZeRO stages, each of which is counted once."""
    if target.on_cpu:
        return NOTHING
    columns = np.stack([cases.dp, cases.tp, cases.pp, cases.zero_stage], axis=1).astype(np.int64)
    kinds, which = np.unique(columns, axis=0, return_inverse=True)
    layout, wanted = layout_of(base), asked(base)
    names = ("dp", "tp", "pp", "zero_stage")
    layouts = [replace(layout, **dict(zip(names, kind, strict=True))) for kind in kinds.tolist()]
    found = arrays([of_layout(one, wanted) for one in layouts])
    return Beside(*(np.asarray(column)[which.ravel()] for column in found))
