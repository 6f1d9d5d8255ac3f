"""A rank's GPU is found by what CUDA and the driver tell of it, whatever its number on either side."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from profilers.gpu.nvml import Nvml
from profilers.gpu.rank_gpus import RankGpu, cuda_identity, gpus_of_ranks
from profilers.records.reader import RunRecords
from profilers.records.writer import RecordWriter
from tests.support.approximate import about
from tests.support.gpu.fake_nvml import NOT_SUPPORTED, FakeNvml, NVMLError
from tests.support.profilers.uniform_records import START, STEPS, named, summary, write
from tests.support.samples import gpu_sample

#: The two H100 of the recording as the driver tells them.
FIRST, SECOND = (Nvml(FakeNvml()).identity(gpu).as_dict() for gpu in (0, 1))


class Uuid:
    """As CUDA's in torch: 16 bytes that print without the driver's "GPU-"."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


def properties(uuid: str = "ee7954ec-da95-fd7a-ddfd-c6b32cc2f8aa", bus: int = 0x19) -> Any:
    """What ``torch.cuda.get_device_properties`` tells of the recording's first GPU."""
    return SimpleNamespace(uuid=Uuid(uuid), pci_domain_id=0, pci_bus_id=bus, pci_device_id=0)


def told(folder: Path, **ranks: dict[str, Any]) -> RunRecords:
    """The environments of ranks, by name; beside them a sampler on host "here" that sees both GPUs."""
    for name, environment in ranks.items():
        with RecordWriter(folder, name.replace("_", "-")) as writer:
            writer.event("environment", **{"device": "NVIDIA H100 80GB HBM3", "host": "here"} | environment)
    with RecordWriter(folder, "launcher") as writer:
        writer.event("gpus", host="here", gpus=[FIRST, SECOND])
    return RunRecords(folder)


def test_cuda_and_the_driver_spell_a_gpu_alike() -> None:
    assert cuda_identity(properties()) == {
        "gpu_uuid": "GPU-ee7954ec-da95-fd7a-ddfd-c6b32cc2f8aa",
        "gpu_pci_bus_id": "00000000:19:00.0",
    }
    assert cuda_identity(properties()) == {f"gpu_{name}": FIRST[name] for name in ("uuid", "pci_bus_id")}
    assert cuda_identity(SimpleNamespace(name="of an older torch")) == {
        "gpu_uuid": None,
        "gpu_pci_bus_id": None,
    }


def test_a_driver_that_does_not_tell_leaves_none() -> None:
    refused = NVMLError("Not Supported", NOT_SUPPORTED)
    library = Nvml(FakeNvml({"nvmlDeviceGetUUID": refused, "nvmlDeviceGetPciInfo": refused}))
    assert library.identity(1).as_dict() == {
        "gpu": 1,
        "name": FIRST["name"],
        "uuid": None,
        "pci_bus_id": None,
    }


def test_ranks_are_found_whatever_their_numbers(tmp_path: Path) -> None:
    """As under CUDA_VISIBLE_DEVICES=1,0."""
    records = told(
        tmp_path, rank_0={"gpu_uuid": SECOND["uuid"]}, rank_1=cuda_identity(properties()), rank_2={"device": "cpu"}
    )  # fmt: skip
    found = gpus_of_ranks(records)
    assert found.gpus == [RankGpu("launcher", 0, (1,)), RankGpu("launcher", 1, (0,))]
    assert (
        found.unknown,
        found.reason,
        found.find_ranks("launcher", 0),
        found.find_ranks("launcher", 2),
    ) == (
        {},
        None,
        [1],
        [],
    )


def test_parts_of_a_gpu_are_found_by_its_bus_on_the_same_host_only(tmp_path: Path) -> None:
    part = cuda_identity(properties(uuid="11111111-2222-3333-4444-555555555555", bus=0x3B))
    records = told(tmp_path, rank_0=part, rank_1=part, rank_2=part | {"host": "elsewhere"})
    found = gpus_of_ranks(records)
    assert found.gpus == [RankGpu("launcher", 1, (0, 1))]
    assert found.unknown == {2: f"no driver that was read shows {part['gpu_uuid']}"}


def test_gpus_of_one_number_on_two_hosts_are_two(tmp_path: Path) -> None:
    records = told(tmp_path, rank_0={"gpu_uuid": FIRST["uuid"]}, rank_1={"gpu_uuid": "GPU-far"})
    with RecordWriter(tmp_path, "host-far") as writer:
        writer.event("gpus", host="far", gpus=[FIRST | {"uuid": "GPU-far"}])
    assert sorted(gpus_of_ranks(records).gpus) == [RankGpu("host-far", 0, (1,)), RankGpu("launcher", 0, (0,))]


def read_both(folder: Path, first: dict[str, Any], second: dict[str, Any]) -> None:
    """Forty readings of both GPUs during the steps, and what the driver tells of them."""
    with RecordWriter(folder, "launcher") as writer:
        writer.event("gpus", host="here", gpus=[FIRST, SECOND])
        for reading in range(41):
            seconds = STEPS * reading / 40
            for gpu, values in enumerate((first, second)):
                watts = values.get("watts", 0.0)
                known = {name: value for name, value in values.items() if name != "watts"}
                joules = watts * seconds
                writer.write(gpu_sample(gpu, time_unix=START + seconds, energy_joules=joules, **known))


CAPPED = {"throttle_reasons": 0x4, "sm_clock_mhz": 1500.0, "sm_clock_max_mhz": 2000.0}
FREE = {"throttle_reasons": 0, "sm_clock_mhz": 2000.0, "sm_clock_max_mhz": 2000.0}


def test_a_capped_clock_names_the_rank_on_that_gpu(tmp_path: Path) -> None:
    write(tmp_path, [{"forward": 1.0}], device="NVIDIA H100", gpu_uuid=SECOND["uuid"])
    read_both(tmp_path, FREE, CAPPED)
    found = named(summary(tmp_path), "clock_cap")
    assert (found.share, found.rank, found.host) == (1.0, 0, "node-0")
    assert "the clock of GPU 1 (rank 0 on node-0)" in found.evidence


def test_what_happens_to_a_gpu_of_somebody_else_is_no_verdict(tmp_path: Path) -> None:
    write(tmp_path, [{"forward": 1.0}], device="NVIDIA H100", gpu_uuid=SECOND["uuid"])
    full = {"memory_used_bytes": 100, "memory_total_bytes": 100}
    read_both(tmp_path, CAPPED | full | {"utilization_fraction": 0.0}, FREE | {"utilization_fraction": 1.0})
    assert [one.name for one in summary(tmp_path).verdicts] == ["compute_bound"]


def test_only_gpus_of_ranks_use_energy_for_the_run(tmp_path: Path) -> None:
    write(tmp_path, [{"forward": 1.0}], device="NVIDIA H100", gpu_uuid=SECOND["uuid"])
    read_both(tmp_path, {"watts": 90.0}, {"watts": 600.0})
    found = summary(tmp_path)
    assert (found.joules_per_step, found.joules_reason) == (about(600.0), None)
    assert [row.ranks for row in found.gpus] == [[], [0]]


def test_what_is_not_recorded_is_not_guessed(tmp_path: Path) -> None:
    """A run of an older version: one GPU a rank, by number, would have been a guess."""
    write(tmp_path, [{"forward": 1.0}], device="NVIDIA H100")
    read_both(tmp_path, CAPPED | {"watts": 90.0}, CAPPED | {"watts": 600.0})
    found = summary(tmp_path)
    reason = "it is not known which GPU rank 0 computes on: the rank did not record it"
    assert (found.joules_per_step, found.joules_reason) == (None, reason)
    assert [row.ranks for row in found.gpus] == [None, None]
    assert found.notes == [f"{reason}; verdicts about GPUs leave it out"]
    assert [one.name for one in found.verdicts] == ["compute_bound"]


def test_ranks_on_the_cpu_use_none(tmp_path: Path) -> None:
    write(tmp_path, [{"forward": 1.0}], device="cpu")
    read_both(tmp_path, {"watts": 90.0}, {"watts": 600.0})
    found = summary(tmp_path)
    assert (found.joules_per_step, found.joules_reason) == (None, "no rank computes on a GPU")
    assert (found.notes, [row.ranks for row in found.gpus]) == ([], [[], []])
