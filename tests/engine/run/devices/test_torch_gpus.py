"""Why torch cannot use GPUs that the driver shows: each reason in one line, from answers, and from real processes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from engine.config.errors import InputError
from engine.config.run_config import parse
from engine.run.devices import gpu_probe, selection, torch_gpus
from engine.run.devices.torch_gpus import TorchGpu, TorchGpus
from profilers.gpu.nvml import Nvml
from tests.support.gpu.fake_nvml import FakeNvml, NVMLError
from tests.support.gpu.torch_gpus import answer
from workbench.services import doctor

NEW = "torch 2.13.0+cu130 (built for CUDA 13.0)"
OLD_DRIVER = (
    "The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver by downloading "
    "and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx Alternatively, go to: ..."
)
NO_DRIVER = (
    "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver"
)
UNKNOWN = (
    "CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable "
    "CUDA_VISIBLE_DEVICES after program start. Setting the available devices to be zero."
)
NO_KERNEL = (
    "CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors might be"
)
K80 = TorchGpu("Tesla K80", architecture="sm_37", error=torch_gpus.first_sentence(NO_KERNEL))
BROKEN = TorchGpu("GPU 1", architecture="sm_90", error="CUDA error: uncorrectable ECC error encountered")

REASONS = {
    "cpu build": (
        TorchGpus("2.13.0+cpu"),
        "this is a CPU build of torch (2.13.0+cpu); install one that is built for the GPUs' driver",
    ),
    "old driver": (
        answer(0, error=torch_gpus.first_sentence(OLD_DRIVER)),
        f"{NEW} cannot use GPUs: The NVIDIA driver on your system is too old (found version 12020)",
    ),
    "no driver": (
        answer(0, error=torch_gpus.first_sentence(NO_DRIVER)),
        f"{NEW} cannot use GPUs: Found no NVIDIA driver on your system",
    ),
    "no nccl": (answer(2, nccl=None), f"{NEW} has no NCCL, which ranks on GPUs talk over"),
    "fewer": (answer(1), f"{NEW} finds 1 of 2 GPUs"),
    "no kernels": (
        answer(2, gpus=(TorchGpu("GPU 0"), K80)),
        f"{NEW} has no kernels for Tesla K80 (sm_37); it has sm_75 sm_90",
    ),
    "broken": (
        answer(2, gpus=(TorchGpu("GPU 0"), BROKEN)),
        f"{NEW} cannot compute on GPU 1 (GPU 1): CUDA error: uncorrectable ECC error encountered",
    ),
    "silent": (torch_gpus._silent("x"), "torch did not tell whether it can use the GPUs: x"),
}


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    """Two GPUs, all visible."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return Nvml(FakeNvml())


@pytest.mark.parametrize(("told", "reason"), REASONS.values(), ids=REASONS)
def test_gpus_that_torch_cannot_use_are_not_chosen(
    nvml: Nvml, told: TorchGpus, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = selection.choose(parse({}), 2, nvml, lambda: told)
    assert (chosen.kind, chosen.backend, chosen.reason, chosen.names) == ("cpu", "gloo", reason, ())
    with pytest.raises(InputError) as refused:
        selection.choose(parse({"device": "cuda"}), 2, nvml, lambda: told)
    fewer = ", or fewer ranks" if told.why_not(1) is None else ""
    assert str(refused.value) == f"device='cuda': {reason}; use device=auto or cpu{fewer}"
    assert bool(fewer) == (reason in {REASONS[name][1] for name in ("fewer", "no kernels", "broken")})
    monkeypatch.setattr("profilers.gpu.nvml.Nvml", lambda: nvml)
    monkeypatch.setattr(torch_gpus, "ask", lambda: told)
    *_, check = doctor._gpus()
    assert (check.name, check.status, check.why, check.needed) == ("torch on gpu", "missing", reason, False)


def test_only_the_gpus_that_ranks_get_have_to_work(nvml: Nvml) -> None:
    told = answer(2, gpus=(TorchGpu("GPU 0"), BROKEN))
    assert selection.choose(parse({}), 1, nvml, lambda: told).kind == "cuda"


def test_torch_is_only_asked_where_that_decides() -> None:
    def never() -> TorchGpus:
        raise AssertionError("asked")

    none, few = Nvml(FakeNvml({"nvmlInit": NVMLError("Driver Not Loaded", 9)})), Nvml(FakeNvml())
    assert "Driver Not Loaded" in selection.choose(parse({}), 1, none, never).reason
    assert "2 GPUs for 3 ranks" in selection.choose(parse({}), 3, few, never).reason
    assert selection.choose(parse({"device": "cpu"}), 1, few, never).kind == "cpu"


def test_gpus_asked_for_by_name_need_no_nvml() -> None:
    none = Nvml(FakeNvml({"nvmlInit": NVMLError("Driver Not Loaded", 9)}))
    asked = parse({"device": "cuda"})
    assert selection.choose(asked, 2, none, lambda: answer(3)).names == ("GPU 0", "GPU 1")
    with pytest.raises(InputError, match=r"finds 3 of 4 GPUs; NVML does not start: Driver Not Loaded"):
        selection.choose(asked, 4, none, lambda: answer(3))


def test_the_real_question_is_asked_once_for_each_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of the torch that is installed; the process that starts it loads nothing."""
    asked, real = [], torch_gpus._probe
    monkeypatch.setattr(torch_gpus, "_answers", {})
    monkeypatch.setattr(torch_gpus, "_probe", lambda *given: asked.append(given) or real(*given))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = torch_gpus.ask()
    assert found.torch == torch.__version__
    reason = found.why_not(1)
    if torch.version.cuda is None:
        assert reason == f"this is a CPU build of torch ({torch.__version__}); " + reason.partition("; ")[2]
    else:
        assert reason is not None
        assert found.built_for == f"CUDA {torch.version.cuda}"
    assert (torch_gpus.ask() is found, len(asked)) == (True, 1)
    monkeypatch.setattr(torch_gpus, "_probe", lambda *_: TorchGpus(torch="another"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert torch_gpus.ask().torch == "another"


SILENT = {
    "import sys; sys.exit('ImportError: libcudart.so.13: cannot open')": "ImportError: libcudart.so.13: cannot open",
    "import os; os.abort()": "the process that asked it died of SIGABRT",
    "import time; time.sleep(60)": "no answer in 0.5 s",
    "print('{}x')": "the process that asked it ended with 0",
}


@pytest.mark.parametrize(("script", "why"), SILENT.items(), ids=SILENT.values())
def test_a_question_without_an_answer_has_a_reason(script: str, why: str) -> None:
    limit = 0.5 if "sleep" in script else 60.0
    found = torch_gpus._probe([sys.executable, "-S", "-c", script], limit)
    assert found == torch_gpus._silent(why)


def test_noise_before_the_answer_is_passed_over() -> None:
    line = msgspec.json.encode(answer(1)).decode()
    script = f"print('site is noisy'); print({line!r})"
    assert torch_gpus._probe([sys.executable, "-S", "-c", script], 60.0) == answer(1)


def _raises(text: str) -> Callable[[], None]:
    def start() -> None:
        raise RuntimeError(text)

    return start


@pytest.fixture
def cuda_build(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Any], None]:
    """Gives torch a part of a CUDA build."""

    def give(name: str, value: Any) -> None:
        monkeypatch.setattr(f"torch.{name}", value)

    give("version.cuda", "13.0")
    give("version.hip", None)
    give("backends.cuda.is_built", lambda: True)
    give("distributed.is_nccl_available", lambda: True)
    give("cuda.nccl.version", lambda: (2, 28, 9))
    give("cuda.init", lambda: None)
    give("cuda.device_count", lambda: 2)
    give("cuda.get_arch_list", lambda: ["sm_75", "sm_90"])
    properties = SimpleNamespace(name="NVIDIA H100", major=9, minor=0, total_memory=2**36, uuid="ee7954ec")
    give("cuda.get_device_properties", lambda _: properties)
    return give


@pytest.mark.parametrize("words", [OLD_DRIVER, NO_DRIVER])
def test_torch_s_own_words_are_told(cuda_build: Callable[[str, Any], None], words: str) -> None:
    cuda_build("cuda.init", _raises(words))
    found = gpu_probe.look()
    assert (found.built_for, found.nccl, found.gpus) == ("CUDA 13.0", "2.28.9", ())
    assert found.error == words.partition(". ")[0]


def test_a_missing_device_file_is_named(
    cuda_build: Callable[[str, Any], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(gpu_probe, "_CONTROL", tmp_path / "nvidiactl")
    monkeypatch.setattr(gpu_probe, "_MEMORY", tmp_path / "nvidia-uvm")
    cuda_build("cuda.init", _raises(UNKNOWN))
    assert f"{tmp_path / 'nvidia-uvm'} is missing: give it to the container" in str(gpu_probe.look().error)
    (tmp_path / "nvidia-uvm").touch()
    assert str(gpu_probe.look().error).endswith("after program start")
    cuda_build("cuda.init", lambda: None)
    cuda_build("cuda.device_count", lambda: 0)
    assert gpu_probe.look().error == "no GPU is found"


def test_each_gpu_is_tried(cuda_build: Callable[[str, Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    monkeypatch.setattr(gpu_probe, "_error_on", lambda device: tried.append(device.index))
    found = gpu_probe.look()
    gpu = TorchGpu("NVIDIA H100", "GPU-ee7954ec", "sm_90", 2**36)
    assert (found.gpus, found.why_not(2), tried) == ((gpu, gpu), None, [0, 1])
    gpu_probe.look(only=1)
    assert tried == [0, 1, 1]


def test_what_an_operation_fails_with(monkeypatch: pytest.MonkeyPatch) -> None:
    device, waited = torch.device("cpu"), []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    assert (gpu_probe._error_on(device), waited) == (None, [device])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: _raises(NO_KERNEL)())
    assert gpu_probe._error_on(device) == NO_KERNEL.partition("\n")[0]
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: _raises("CUDA error: out of memory")())
    assert gpu_probe._error_on(device) is None
