"""Ranks of another launcher use the same kind of device on all hosts, or all refuse."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from engine.config.errors import InputError
from engine.config.run_config import RunConfig, parse
from engine.config.sections import Network
from engine.launch import torchrun
from engine.launch.torchrun import _Choice
from engine.run.devices import gpu_probe
from engine.run.devices.selection import Devices
from profilers.gpu.nvml import Nvml
from tests.support.gpu.fake_nvml import FakeNvml
from tests.support.gpu.torch_gpus import answer

GPUS = Devices("cuda", "nccl", "8 GPUs for 2 ranks, one each", ("first", "second"))
CPU = Devices("cpu", "gloo", "torch finds 1 of 2 GPUs")


def together(
    config: RunConfig, found: list[_Choice], monkeypatch: pytest.MonkeyPatch
) -> list[Devices | InputError]:
    """What ranks that found this choose; each is a thread."""
    store, mine = dist.HashStore(), threading.local()
    store.set_timeout(timedelta(seconds=20))
    monkeypatch.setattr(torchrun, "_own_choice", lambda _: found[mine.place])

    def rank(place: int) -> Devices | InputError:
        mine.place = place
        try:
            return torchrun.choose_devices(config, store, place, len(found))
        except InputError as error:
            return error

    with ThreadPoolExecutor(len(found)) as pool:
        return list(pool.map(rank, range(len(found))))


def test_gpus_are_used_if_each_rank_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    others = Devices("cuda", "nccl", GPUS.reason, ("third", "fourth"))
    found = [_Choice("one", GPUS), _Choice("one", GPUS), _Choice("two", others)]
    assert together(parse({}), found, monkeypatch) == [GPUS, GPUS, others]


def test_one_rank_without_keeps_all_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [_Choice("one", GPUS), _Choice("two", CPU), _Choice("two", GPUS)]
    first, *others = together(parse({}), found, monkeypatch)
    assert first == Devices("cpu", "gloo", f"two: {CPU.reason}")
    assert others == [CPU, CPU]


def test_all_refuse_what_one_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [_Choice("one", GPUS), _Choice("two", remedy="torch finds 1 of 2 GPUs; use device=cpu")]
    refused = together(parse({"device": "cuda"}), found, monkeypatch)
    assert list(map(str, refused)) == [
        "device='cuda': two: torch finds 1 of 2 GPUs; use device=cpu",
        "device='cuda': torch finds 1 of 2 GPUs; use device=cpu",
    ]


def test_a_rank_asks_torch_of_its_own_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr("profilers.gpu.detection.open_library", lambda: Nvml(FakeNvml()))
    monkeypatch.setattr(gpu_probe, "look", lambda only: asked.append(only) or answer(2))
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = torchrun._own_choice(parse({}))
    assert (found.devices is not None and found.devices.kind, asked) == ("cuda", [1])
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert "2 GPUs for 3 ranks" in torchrun._own_choice(parse({"device": "cuda"})).remedy


@pytest.mark.skipif(Nvml().device_count > 0, reason="this machine has a GPU")
def test_a_refused_device_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in alone.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "config.json").write_text(parse({"device": "cuda"}).dumps(), encoding="utf-8")
    assert torchrun.main([str(tmp_path / "config.json"), "--out", str(tmp_path / "runs")]) == 2
    told = capsys.readouterr().err
    assert (told.startswith("error: device='cuda': "), told.count("\n")) == (True, 1), told
    assert not (tmp_path / "runs").exists()


def test_a_run_of_a_lab_goes_elsewhere_without_the_names_of_its_interfaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As exported from a study whose best trial left second cards alone; what names real interfaces stays."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    file = tmp_path / "config.json"
    of_four: dict[str, Any] = {"parallel": {"dp": 4}, "batch": {"global_batch": 4, "micro_batch": 1}}
    lab = {"islands": [2, 2], "inside_mbit": 400.0}
    file.write_text(json.dumps(of_four | {"lab": lab, "network": {"inside": "data"}}), encoding="utf-8")
    assert torchrun._load_config(file).network == Network()
    named = {"inside": "lo", "island_devices": 2}
    file.write_text(json.dumps(of_four | {"network": named}), encoding="utf-8")
    assert torchrun._load_config(file).network == Network(**named)
