"""What a run says that its steps leave out, beside ranks that are built and measured."""

from __future__ import annotations

import pytest

from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from engine.dry_run.pool import build_ranks
from engine.footprint.activations import remembered_bytes
from engine.footprint.footprint import parts_of, plan_of
from profilers.model.rows import PartialProductsRow


def check_told(told: PartialProductsRow | None, key: str, config: RunConfig) -> None:
    """The row is of this setting, and has the bytes that the first or the last rank keeps, to a hundredth, and what its
    sampled products remember; ranks have one stage each, and these keep most.
    """
    assert told is not None and (told.key, told.share) == (key, config.flat()[key])
    whole, kept = (
        [built.activations.device + built.activations.host for (built,) in build_ranks(one, ends_of(one))]
        for one in (config.with_values({key: 1.0}), config)
    )
    place = whole.index(max(whole))
    assert told.whole_bytes == pytest.approx(whole[place], rel=0.01)
    remembered = [remembered_bytes(config, part) for part in parts_of(config, plan_of(config))][place and -1]
    spared = whole[place] - kept[place] - remembered
    assert told.whole_bytes - told.kept_bytes == pytest.approx(spared, rel=0.01)


def ends_of(config: RunConfig) -> list[int]:
    """The first rank and the last one, which may be the same."""
    return sorted({0, layout_of(config).world_size - 1})
