"""Which AMD GPUs a run may use: as many as torch's build for ROCm would find under the same variables."""

from __future__ import annotations

import os

import pytest
import torch

from engine.config.errors import InputError
from engine.config.run_config import parse
from engine.run.devices import selection
from engine.run.devices.torch_gpus import TorchGpu, TorchGpus
from profilers.gpu.amd_smi import AmdSmi
from tests.support.gpu.fake_amdsmi import open_fake_amd
from tuning.execution.device_slices import Slice

UUIDS = ["a32343daf897162a", "ff4251c4d1cac80c", "8d0f0f8a1c2b3e01", "8d0f0f8a1c2b3e02"]
FIRST, SECOND, THIRD = (f"GPU-{uuid}" for uuid in UUIDS[:3])
NAME = "AMD Instinct MI250X"
DIES = TorchGpus("2.13.0+rocm7.0", "ROCm 7.0.2", "2.22.3", ("gfx90a",), (TorchGpu(NAME),) * 4)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> AmdSmi:
    """Four dies of two cards, of which HIP numbers the second card first."""
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    found, module, _ = open_fake_amd()
    for gpu, number in enumerate((2, 3, 0, 1)):
        module.change("amdsmi_get_gpu_enumeration_info", gpu, hip_id=number)
    return found


#: ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES -> numbers as AMD SMI lists them.
SHOWN: dict[tuple[str | None, str | None, str | None], list[int]] = {
    (None, None, None): [2, 3, 0, 1],
    (None, "0", None): [2],
    (None, None, "1,0"): [3, 2],
    (None, "2,3", "0"): [0, 1],
    (None, "0,0", None): [],
    (None, "0,9,1", None): [2],
    (None, "", None): [],
    (None, f"{SECOND},{FIRST}", None): [1, 0],
    ("0,1", None, None): [2, 3],
    ("3,0", "1", None): [2],
    ("3,0", None, "1,0"): [2, 1],
}


@pytest.mark.parametrize(("asked", "expected"), SHOWN.items(), ids=str)
def test_visible_gpus_are_as_many_as_torch_s(
    library: AmdSmi, monkeypatch: pytest.MonkeyPatch, asked: tuple[str | None, ...], expected: list[int]
) -> None:
    names = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    for name, value in zip(names, asked, strict=True):
        if value is not None:
            monkeypatch.setenv(name, value)
    assert selection.visible(library) == expected
    monkeypatch.setattr("torch.version.hip", "7.0.2")
    monkeypatch.setattr(torch.cuda, "_raw_device_count_amdsmi", lambda: 4)
    monkeypatch.setattr(torch.cuda, "_raw_device_uuid_amdsmi", lambda: UUIDS)
    assert torch.cuda._device_count_amdsmi() == len(expected)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (f"1,{FIRST.upper()}", [3, 0]),
        ("1,GPU-XX,0", [3]),
        ("1,1,0", [3]),
        ("GPU-8d0f", []),
        ("-1", []),
        ("", []),
        (f"{THIRD},0", [2]),
    ],
)
def test_rocr_s_list_ends_where_nothing_fits(
    library: AmdSmi, monkeypatch: pytest.MonkeyPatch, asked: str, expected: list[int]
) -> None:
    """The examples of ROCr's own header; torch only counts the commas."""
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", asked)
    assert selection.visible(library) == expected


def test_a_run_on_amd_says_what_hides_its_gpus(library: AmdSmi, monkeypatch: pytest.MonkeyPatch) -> None:
    found = selection.choose(parse({}), 4, library, lambda: DIES)
    assert (found.kind, found.backend, found.names) == ("cuda", "nccl", (NAME,) * 4)
    assert found.reason == "4 GPUs for 4 ranks, one each", "a die is a device"
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "0,1")
    few = selection.choose(parse({}), 4, library, lambda: DIES)
    assert few.reason == "2 GPUs (ROCR_VISIBLE_DEVICES hides 2 more) for 4 ranks; RCCL needs one each"
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0")
    with pytest.raises(InputError, match="ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES hides 3 more"):
        selection.choose(parse({"device": "cuda"}), 4, library, lambda: DIES)


def test_amd_gpus_under_a_torch_for_cuda_are_left_alone(library: AmdSmi) -> None:
    on_cpu = selection.choose(parse({}), 2, library, lambda: TorchGpus("2.13.0+cpu"))
    assert (on_cpu.kind, on_cpu.backend) == ("cpu", "gloo")
    assert "this is a CPU build of torch (2.13.0+cpu)" in on_cpu.reason


def test_a_controller_keeps_to_its_part_by_uuid(library: AmdSmi, monkeypatch: pytest.MonkeyPatch) -> None:
    """HIP's order is not that of AMD SMI, so a number would name another die."""
    monkeypatch.setattr("profilers.gpu.detection.open_library", lambda: library)
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "3,2,1,0")
    Slice(gpus=(1, 2)).take()
    assert os.environ["ROCR_VISIBLE_DEVICES"] == f"{SECOND},{THIRD}"
    assert "HIP_VISIBLE_DEVICES" not in os.environ and "CUDA_VISIBLE_DEVICES" not in os.environ
    assert selection.visible(library) == [1, 2]
