"""Which library reads the GPUs of a machine, and the one line that says why ROCm's cannot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from profilers.gpu import amd_library, detection
from profilers.gpu.amd_smi import AmdSmi
from profilers.gpu.nvml import Nvml
from tests.support.gpu.fake_amdsmi import DRIVER_NOT_LOADED, AmdSmiLibraryException, FakeAmdSmi
from tests.support.gpu.fake_nvml import FakeNvml, NVMLError

NO_NVIDIA = {"nvmlInit": NVMLError("Driver Not Loaded", 9)}
NO_AMD: dict[str, Exception] = {"amdsmi_init": AmdSmiLibraryException(DRIVER_NOT_LOADED)}


@pytest.mark.parametrize(
    ("rocm", "nvidia", "amd", "vendor"),
    [
        ("7.0.2", True, True, "AMD"),
        ("7.0.2", True, False, "AMD"),
        (None, True, True, "NVIDIA"),
        (None, False, True, "AMD"),
        (None, False, False, "NVIDIA"),
    ],
)
def test_torch_s_build_chooses_one_of_two(
    monkeypatch: pytest.MonkeyPatch, rocm: str | None, nvidia: bool, amd: bool, vendor: str
) -> None:
    monkeypatch.setattr("torch.version.hip", rocm)
    monkeypatch.setattr("profilers.gpu.nvml.Nvml", lambda: Nvml(FakeNvml(None if nvidia else NO_NVIDIA)))  # type: ignore[arg-type]
    monkeypatch.setattr("profilers.gpu.amd_smi.AmdSmi", lambda: AmdSmi(FakeAmdSmi(None if amd else NO_AMD)))
    found = detection.open_library()
    assert (found.vendor, found.reason is None) == (vendor, amd if vendor == "AMD" else nvidia)


def test_a_driver_that_is_not_loaded_says_so_in_one_line() -> None:
    library = AmdSmi(FakeAmdSmi(NO_AMD))
    assert library.device_count == 0
    assert library.reason == (
        "AMD SMI does not start: AMDSMI_STATUS_DRIVER_NOT_LOADED - Driver not loaded. Is the driver amdgpu loaded?"
    )


def package(folder: Path, text: str) -> Path:
    """A package amdsmi that does this when it is imported."""
    (folder / "amdsmi").mkdir()
    (folder / "amdsmi" / "__init__.py").write_text(text, "utf-8")
    return folder


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that Python imports from, without ROCm."""
    for name in ("ROCM_PATH", "ROCM_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.skipif(Path("/opt/rocm").exists(), reason="ROCm is installed")
def test_without_the_library_the_package_is_not_imported(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its import would print two lines and raise a KeyError."""
    package(path, "print('libamd_smi.so: cannot open shared object file'); {}['libamd_smi.so']")
    library = AmdSmi()
    assert library.reason == "libamd_smi.so was not found: install ROCm's amd-smi-lib, or set ROCM_PATH"
    assert (library.device_count, library.driver_version, library.sample(0).power_watts) == (0, None, None)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "text",
    ["{}['libamd_smi.so']", "raise OSError('two\\nlines')", "import ctypes; ctypes.CDLL(None).amdsmi_new"],
)
def test_a_package_of_another_rocm_says_so_in_one_line(
    path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    package(path, text)
    (path / "lib").mkdir()
    (path / "lib" / "libamd_smi.so").touch()
    monkeypatch.setenv("ROCM_PATH", str(path))
    reason = AmdSmi().reason
    assert reason is not None and "\n" not in reason
    assert reason.startswith("amdsmi of an unknown version does not fit this machine's libamd_smi.so (")
    assert reason.endswith("): install the amdsmi of its ROCm")


def test_without_the_package_one_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(amd_library.NoAmdSmiError, match="the Python package amdsmi is not installed"):
        amd_library.load()


def test_what_torch_is_built_for_is_known_without_it() -> None:
    script = (
        "import sys; from profilers.gpu import detection; print(detection.rocm(), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(torch.version.hip), "False"]


def test_rocm_s_version_is_read_from_torch_s_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError", "utf-8")
    (tmp_path / "torch" / "version.py").write_text(
        "cuda: str | None = None\nhip: str | None = '7.0.2'\n", "utf-8"
    )
    monkeypatch.setitem(sys.modules, "torch.version", None)
    monkeypatch.delitem(sys.modules, "torch.version")
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.syspath_prepend(str(tmp_path))
    detection._told_by_file.cache_clear()
    try:
        assert detection.rocm() == "7.0.2"
    finally:
        detection._told_by_file.cache_clear()
