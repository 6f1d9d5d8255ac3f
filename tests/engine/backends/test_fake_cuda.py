"""Every rank's steps on ``cuda:0`` without a GPU: no tensor of the host meets one of the device, on any path.

Shapes, devices, and what waits for what are real; values, speed and other ranks are not. ``cases.UNREACHED`` names
what cannot be tried this way.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from engine.config.layout import layout_of
from engine.config.run_config import RunConfig
from tests.support.gpu.fake_cuda import build, cases
from tests.support.gpu.fake_cuda.process import FakeCuda
from tests.support.runs import small

#: Twice the patience of the process: a pipeline's case asks two ranks.
pytestmark = pytest.mark.timeout(600)

LAYOUTS, SETTINGS = cases.layouts(), cases.settings()
#: Each mistake of ``plants.py``, what has to be configured for it, and how it is noticed.
MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("buffer", {}, "MixedDevicesError: aten.add.Tensor takes tensors on the CPU and on CUDA"),
    ("buffer_in_backward", {}, "MixedDevicesError: aten.mul.Tensor takes tensors on the CPU and on CUDA"),
    ("index", {}, "MixedDevicesError: aten.index.Tensor takes tensors on the CPU and on CUDA"),
    ("total", {}, "MixedDevicesError: aten.add_.Tensor takes tensors on the CPU and on CUDA"),
    (
        "random_streams",
        {"parallel.dp": 2, "compression.method": "randomk"},
        "MixedDevicesError: .* a generator on cpu",
    ),
    (
        "copy_up_not_waited_for",
        {"memory.offload": "activations", "model.layers": 5},
        "UnorderedError: .* does not wait",
    ),
    ("copy_down_before_the_kernel", {"memory.offload": "activations"}, "UnorderedError: .* does not wait"),
    (
        "memory_given_away_early",
        {"memory.offload": "activations", "model.layers": 5},
        "UnorderedError: .* no record_stream",
    ),
    (
        "copied_memory_used_early",
        {"memory.offload": "activations", "model.layers": 5},
        "UnorderedError: .* no record_stream",
    ),
    ("host_reads_early", {"memory.offload": "optimizer"}, "UnorderedError: .* on the host does not wait"),
]


#: Layouts whose settings are tried together: all of them take longer than a part of the slow tests may.
PARTS = (("alone", "mixture", "dp"), ("zero1", "zero2", "zero3", "hsdp"), ("ep", "ring", "1f1b", "tp"))


def settings_of(*layouts: str) -> list[str]:
    """Names of the cases of these layouts."""
    return [name for name in SETTINGS if name.split("-", 1)[0] in layouts]


@pytest.fixture(scope="module")
def fake_cuda() -> Iterator[FakeCuda]:
    """One process for all cases of this file."""
    reason = build.why_not() or ("torch has CUDA itself here" if torch.version.cuda else None)
    if reason is not None:
        pytest.skip(reason)
    with FakeCuda() as process:
        yield process


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_step_on_the_device(fake_cuda: FakeCuda, name: str) -> None:
    """The first rank, and of a pipeline the last one as well: it has other parts of the model."""
    config = LAYOUTS[name]
    ranks = {0, layout_of(config).world_size - 1 if config.parallel.pp > 1 else 0}
    for rank in ranks:
        steps_on_the_device(fake_cuda, config, rank)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", settings_of(*PARTS[0]))
def test_settings_step_on_the_device(fake_cuda: FakeCuda, name: str) -> None:
    steps_on_the_device(fake_cuda, SETTINGS[name], 0)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", settings_of(*PARTS[1]))
def test_settings_of_sharded_layouts_step_on_the_device(fake_cuda: FakeCuda, name: str) -> None:
    steps_on_the_device(fake_cuda, SETTINGS[name], 0)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", settings_of(*PARTS[2]))
def test_settings_of_split_models_step_on_the_device(fake_cuda: FakeCuda, name: str) -> None:
    steps_on_the_device(fake_cuda, SETTINGS[name], 0)


@pytest.mark.parametrize(("plant", "values", "words"), MISTAKES, ids=[name for name, *_ in MISTAKES])
def test_a_mistake_is_seen(fake_cuda: FakeCuda, plant: str, values: dict[str, Any], words: str) -> None:
    config = small(**cases.SIZES | {"model__layers": 2}).with_values(cases.STEPS | values)
    found = fake_cuda.run(config.with_values({"batch.global_batch": 4}), plant=plant)
    assert found["error"] is not None, f"{plant} went unnoticed"
    assert re.search(words, found["error"]), found["error"]


def test_every_setting_is_tried_or_known_not_to_be() -> None:
    tried = {name.split("-", 1)[1] for name in SETTINGS}
    parts = [settings_of(*layouts) for layouts in PARTS]
    assert sorted(itertools.chain(*parts)) == sorted(SETTINGS)
    assert not [f"{key}={value}" for key, value in cases.values() if f"{key}={value}" not in tried]
    assert {
        name.split("=")[0] for name in cases.UNREACHED
    } <= RunConfig().flat().keys() | RunConfig.model_fields.keys()


def steps_on_the_device(fake_cuda: FakeCuda, config: RunConfig, rank: int) -> None:
    """Two steps of one rank, an evaluation, and all records."""
    found = fake_cuda.run(config, rank)
    assert found["error"] is None, found["error"]
    assert found["finished"] and found["operators"] > 500
