"""Which GPUs a run may use: the same ones that torch would find under CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from engine.config.errors import InputError
from engine.config.run_config import parse
from engine.run.devices import selection
from engine.run.devices.selection import BACKEND_VARIABLE, load_backend
from profilers.gpu.nvml import Nvml
from tests.support.gpu.fake_nvml import FakeNvml
from tests.support.gpu.torch_gpus import torch_can_use
from workbench.selftest.check_context import CheckContext
from workbench.selftest.checks.machine import machine
from workbench.services import doctor

FIRST, SECOND = "GPU-ee7954ec-da95-fd7a-ddfd-c6b32cc2f8aa", "GPU-ee7900aa-0000-0000-0000-000000000002"


@pytest.fixture
def nvml() -> Nvml:
    """Two GPUs whose names and UUIDs differ."""
    fake = FakeNvml()
    fake.answers["nvmlDeviceGetUUID"] = {"[0]": [FIRST], "[1]": [SECOND]}
    fake.answers["nvmlDeviceGetName"] = {"[0]": ["first"], "[1]": ["second"]}
    return Nvml(fake)


ASKED = {
    "": [], " ": [], "0": [0], "1": [1], "1,0": [1, 0], "0, 1": [0, 1], "0,0": [], "0,-1,1": [0], "0,7,1": [0],
    "0,7,7": [], "NoDevFiles": [], "1gpu,0": [1, 0], "2": [], FIRST: [0], f"{SECOND},{FIRST}": [1, 0], FIRST[:12]: [0],
    "GPU-ee79": [], f"{FIRST},GPU-other,{SECOND}": [0], f"{FIRST},{FIRST[:12]}": [], f"{FIRST},1": [0],
}  # fmt: skip


@pytest.mark.parametrize(("asked", "expected"), ASKED.items(), ids=repr)
def test_visible_gpus_are_those_of_torch(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch, asked: str, expected: list[int]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", asked)
    monkeypatch.setattr(torch.cuda, "_raw_device_count_nvml", lambda: 2)
    monkeypatch.setattr(torch.cuda, "_raw_device_uuid_nvml", lambda: [FIRST, SECOND])
    assert selection.visible(nvml) == expected
    assert torch.cuda._device_count_nvml() == len(expected)


def test_a_run_states_the_gpus_that_it_gets(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    auto = parse({})
    torch_can_use(monkeypatch, 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert selection.choose(auto, 2, nvml).names == ("first", "second")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert selection.choose(auto, 1, nvml).names == ("second",)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", SECOND)
    few = selection.choose(auto, 2, nvml)
    assert (few.kind, few.names) == ("cpu", ())
    assert few.reason == "1 GPU (CUDA_VISIBLE_DEVICES hides 1 more) for 2 ranks; NCCL needs one each"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(InputError, match="CUDA_VISIBLE_DEVICES hides 2 more"):
        selection.choose(parse({}).with_values({"device": "cuda"}), 1, nvml)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b")
    assert selection.visible(nvml) == [None, None]
    assert selection.choose(auto, 1, nvml).names == ("a part of a GPU (MIG)",)
    assert selection.choose(auto, 2, nvml).reason == (
        "a part of a GPU (MIG) takes one rank, not 2: CUDA shows a process one part and no other GPU"
    )


def test_a_gpu_in_mig_mode_is_no_whole_gpu(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    torch_can_use(monkeypatch, 1)
    nvml.module.answers["nvmlDeviceGetMigMode"] = {"[0]": [[0, 1]], "[1]": [[1, 1]]}
    assert selection.visible(nvml) == [0, None]
    assert selection.choose(parse({}), 2, nvml).kind == "cpu"
    assert selection.choose(parse({}), 1, nvml).names == ("a part of a GPU (MIG)",)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert selection.choose(parse({}), 1, nvml).names == ("first",)
    assert not any("Mig" in line for line in nvml.missing)


@pytest.mark.parametrize(
    ("asked", "stated"),
    [
        (None, ("ok", "1 x first, 1 x second", "driver")),
        ("1", ("ok", "1 x second", "CUDA_VISIBLE_DEVICES hides 1 more")),
        ("", ("missing", "", "no GPU to use (CUDA_VISIBLE_DEVICES hides 2 more)")),
    ],
)
def test_doctor_states_the_same(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch, asked: str | None, stated: tuple[str, str, str]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if asked is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", asked)
    monkeypatch.setattr("profilers.gpu.nvml.Nvml", lambda: nvml)
    torch_can_use(monkeypatch, 2)
    found, *of_torch = doctor._gpus()
    assert (found.status, found.value) == stated[:2]
    assert stated[2] in found.why
    assert [check.status for check in of_torch] == ["ok"] * (found.status == "ok")


def test_cpu_ranks_take_the_backend_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse({"device": "cpu"})
    monkeypatch.delenv(BACKEND_VARIABLE, raising=False)
    assert selection.choose(config, 1).backend == load_backend("gloo") == "gloo"
    monkeypatch.setenv(BACKEND_VARIABLE, "tests.support.gpu.like_nccl:like_nccl")
    chosen = selection.choose(config, 1)
    assert (chosen.kind, chosen.backend) == ("cpu", "tests.support.gpu.like_nccl:like_nccl")
    assert load_backend(chosen.backend) in dist.Backend.backend_list


@pytest.mark.parametrize("asked", ["gloo", "module:", ":name", "no.such.module:name", "no_such_module:name"])
def test_a_backend_that_cannot_be_had_is_refused(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setenv(BACKEND_VARIABLE, asked)
    with pytest.raises(InputError, match=f"^WORKBENCH_BACKEND='{asked}': "):
        selection.choose(parse({"device": "cpu"}), 1)


def test_the_selftest_says_which_variable_hides_gpus(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    monkeypatch.setattr("profilers.gpu.nvml.Nvml", lambda: nvml)
    monkeypatch.setattr(
        doctor, "examine", lambda home: [doctor._python(), *doctor._torch(), doctor._processors()]
    )
    verdict = machine(CheckContext("auto", 2, tmp_path))
    assert verdict.reason.endswith("no GPU to train on (CUDA_VISIBLE_DEVICES hides 2 more)")
