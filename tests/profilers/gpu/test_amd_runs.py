"""A run on AMD's GPUs, read by the sampler through replayed answers: its rows, and the energy of cards of two dies."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from profilers.analysis.machine import gpus_of, joules_of_ranks
from profilers.gpu import rank_gpus
from profilers.gpu.amd_smi import AmdSmi
from profilers.gpu.rank_gpus import cuda_identity, gpus_of_ranks
from profilers.records.reader import RunRecords
from profilers.records.writer import RecordWriter
from profilers.system.sampler import Sampler
from tests.support.approximate import about
from tests.support.gpu.fake_amdsmi import (
    DRIVER_NOT_LOADED,
    MI250X,
    AmdSmiLibraryException,
    FakeAmdSmi,
    sampled_by_amd,
)

#: What a card uses in each second between two tables.
NO_DRIVER: dict[str, Exception] = {"amdsmi_init": AmdSmiLibraryException(DRIVER_NOT_LOADED)}
JOULES = {0: 500, 2: 300}
UUIDS = ("a32343daf897162a", "ff4251c4d1cac80c", "8d0f0f8a1c2b3e01", "8d0f0f8a1c2b3e02")


def properties(uuid: str) -> Any:
    """What torch tells of a device under HIP: the UUID is 16 characters, of which it prints each as two digits."""
    digits = uuid.encode().hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return SimpleNamespace(uuid="-".join(parts), pci_domain_id=0, pci_bus_id=0xC1, pci_device_id=0)


def ran(folder: Path, *ranks_on: int) -> RunRecords:
    """A rank on each of these dies while the sampler reads all four, ten times in ten seconds."""
    for rank, gpu in enumerate(ranks_on):
        with RecordWriter(folder, f"rank-{rank}") as writer:
            told = cuda_identity(properties(UUIDS[gpu]), hip=True)
            writer.event("environment", device="AMD Instinct MI250X", host="elsewhere", **told)
    module = FakeAmdSmi(path=MI250X)
    tables = module.answers["amdsmi_get_gpu_metrics_info"]
    for gpu, joules in JOULES.items():
        [table] = tables[f"[{gpu}]"]
        tables[f"[{gpu}]"] = [
            # one more for the sampler's look at who tells the energy
            table | {"energy_accumulator": table["energy_accumulator"] + max(0, tick - 1) * joules * 65_536}
            for tick in range(12)
        ]
    with RecordWriter(folder, "launcher") as writer:
        sampled_by_amd(writer, module, seconds=10)
    return RunRecords(folder)


def test_hip_and_the_driver_spell_a_gpu_alike() -> None:
    told = cuda_identity(properties(UUIDS[0]), hip=True)
    assert told == {"gpu_uuid": "GPU-a32343daf897162a", "gpu_pci_bus_id": "00000000:C1:00.0"}
    plain = SimpleNamespace(uuid="no uuid at all")
    assert cuda_identity(plain, hip=True)["gpu_uuid"] == "GPU-no uuid at all"


@pytest.mark.parametrize(
    ("ranks_on", "joules"),
    [((0, 1, 2, 3), 8000), ((0, 1), 5000), ((1,), 5000), ((3, 0), 8000), ((2,), 3000)],
)
def test_a_card_s_energy_counts_once_whichever_dies_ranks_use(
    tmp_path: Path, ranks_on: tuple[int, ...], joules: float
) -> None:
    """A sum over dies would be right only by luck: twice with halves, none with a second die alone."""
    records = ran(tmp_path, *ranks_on)
    used = gpus_of_ranks(records)
    assert used.unknown == {}
    times = records.table("launcher", "gpu").column("time_unix")
    found, reason = joules_of_ranks(records, used, float(times.min()), float(times.max()))
    assert (found, reason) == (about(joules), None)


def test_rows_have_what_amd_tells(tmp_path: Path) -> None:
    records = ran(tmp_path, 0, 1)
    found = gpus_of(records, gpus_of_ranks(records), None)
    rows = found["gpus"]
    assert [(row.ranks, row.power_watts) for row in rows] == [([0], 144), ([1], None), ([], 97), ([], None)]
    assert [row.energy_joules for row in rows] == [about(5000), None, about(3000), None]
    assert rows[0].throttled == {"hardware slowdown": 1.0} and rows[1].throttled == {}
    assert rows[1].utilization == 1.0 and rows[1].memory_used_bytes == 41_000 * 2**20
    [event] = [event for event in records.events("launcher") if event.kind == rank_gpus.EVENT]
    assert {name: event.data[name] for name in ("vendor", "library", "links")} == {
        "vendor": "AMD", "library": "AMD SMI", "links": "xGMI"}  # fmt: skip


def test_without_rocm_the_reason_is_told(tmp_path: Path) -> None:
    with (
        RecordWriter(tmp_path, "launcher") as writer,
        Sampler(writer, 30.0, library=AmdSmi(FakeAmdSmi(NO_DRIVER))),
    ):
        pass
    records = RunRecords(tmp_path)
    reason = str(gpus_of(records, gpus_of_ranks(records), None)["gpus_reason"])
    assert reason.startswith("no GPU: AMD SMI does not start: AMDSMI_STATUS_DRIVER_NOT_LOADED")
