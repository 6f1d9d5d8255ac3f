"""AMD SMI as it is read: an MI300X, an MI250X of two dies, one that fails in the middle, and older shapes.

The answers are those of tests/data/amdsmi_*.json, which are built from documents: no AMD GPU gave them.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from profilers.analysis import machine
from profilers.gpu.amd_readings import energy_unit_joules, throttle_reasons
from profilers.gpu.library import GpuLimits
from tests.support.approximate import about
from tests.support.gpu.fake_amdsmi import (
    MI250X,
    MI300X,
    NOT_FOUND,
    NOT_SUPPORTED,
    AmdSmiLibraryException,
    FakeAmdSmi,
    open_fake_amd,
)
from tests.support.samples import gpu_sample

MIB = 2**20
READINGS = sorted(name for name in FakeAmdSmi().answers if name not in ("amdsmi_get_gpu_asic_info",))


def test_a_sample_has_its_units() -> None:
    """GPU 0 is at its power limit of 750 W; its first table tells nothing of what held the clocks since another."""
    library, _, _ = open_fake_amd(path=MI300X)
    library.ranks = frozenset({101})
    assert library.sample(0) == gpu_sample(
        0,
        time_unix=5.0,
        utilization_fraction=1.0,
        memory_utilization_fraction=about(0.37),
        memory_used_bytes=150_000 * MIB,
        memory_total_bytes=196_592 * MIB,
        power_watts=717,
        energy_joules=about(4_750_896_266_000 / 65_536),
        temperature_celsius=78,
        sm_clock_mhz=1400.0,
        memory_clock_mhz=1300,
        throttle_reasons=None,
        power_limit_watts=about(750.0),
        slowdown_celsius=100,
        sm_clock_max_mhz=2100,
        nvlink_tx_bytes=7 * 8_000_000_000,
        nvlink_rx_bytes=7 * 9_000_000_000,
        ecc_corrected=3,
        ecc_uncorrected=0,
        processes=1,
        ranks_memory_bytes=157_286_400_000,
    )


def test_between_two_tables_lies_what_held_the_clocks_down() -> None:
    library, _, clock = open_fake_amd(path=MI300X)
    before = [library.sample(gpu) for gpu in (0, 1)]
    clock.now += 1.0
    after = [library.sample(gpu) for gpu in (0, 1)]
    assert [machine.words(one.throttle_reasons or 0) for one in after] == [("power cap",), ()]
    assert after[1].throttle_reasons == 0
    gained = [new.energy_joules - old.energy_joules for new, old in zip(after, before, strict=True)]  # type: ignore[operator]
    assert gained == [about(717.0), about(139.0)]


@pytest.mark.parametrize(
    ("counter", "words"),
    [
        ("ppt_residency_acc", ("power cap",)),
        ("prochot_residency_acc", ("thermal slowdown by hardware",)),
        ("socket_thm_residency_acc", ("thermal slowdown by hardware",)),
        ("hbm_thm_residency_acc", ("thermal slowdown by hardware",)),
    ],
)
def test_each_counter_has_its_reason(counter: str, words: tuple[str, ...]) -> None:
    assert machine.words(throttle_reasons({counter: 5}, {counter: 6}) or 0) == words
    assert throttle_reasons({counter: 6}, {counter: 6}) == 0
    assert throttle_reasons({counter: 6}, {counter: 2}) == 0, "it was reset"
    assert throttle_reasons(None, {counter: 6}) is None
    assert throttle_reasons({counter: "N/A"}, {counter: 2**64 - 1}) is None


def test_an_mi250x_tells_that_clocks_are_held_but_not_why() -> None:
    library, _, _ = open_fake_amd()
    masks = [library.sample(gpu).throttle_reasons for gpu in range(4)]
    assert masks == [0x8, 0, 0, 0]
    assert machine.words(0x8) == ("hardware slowdown",)


def test_the_second_die_of_a_card_has_no_power_of_its_own() -> None:
    """The driver answers 0 W and 0 J there, which would halve the energy of a run on both dies."""
    library, _, _ = open_fake_amd()
    read = [library.sample(gpu) for gpu in range(library.device_count)]
    assert [one.power_watts for one in read] == [144, None, 97, None]
    assert [one.energy_joules is None for one in read] == [False, True, False, True]
    assert read[0].energy_joules == about(14_610_425_995_231 / 65_536)
    assert [one.power_limit_watts for one in read] == [about(560.0), None, about(560.0), None]
    assert [library.identity(gpu).as_dict().get("energy_of") for gpu in range(4)] == [None, 0, None, 2]
    assert all(library.tells_energy(gpu) for gpu in range(4))
    assert [line for line in library.missing if "second dies" in line] == [
        "power and energy of second dies: the driver tells those of a card at its first die"
    ]


def test_a_second_die_alone_or_a_gpu_that_counts_nothing_has_no_energy() -> None:
    library, module, _ = open_fake_amd()
    for gpu in (0, 2):
        module.change("amdsmi_get_gpu_metrics_info", gpu, energy_accumulator=0, average_socket_power=0)
    assert not any(library.tells_energy(gpu) for gpu in range(4))
    other, module, _ = open_fake_amd(path=MI300X)
    module.change("amdsmi_get_gpu_metrics_info", 1, energy_accumulator=0)
    assert (other.tells_energy(0), other.tells_energy(1)) == (True, False), "an MI300X has no sister"
    assert other.sample(1).power_watts == 139


@pytest.mark.parametrize("path", [MI250X, MI300X], ids=["MI250X", "MI300X"])
@pytest.mark.parametrize("gone", ["N/A", 0xFFFF, 2**32 - 1, 2**64 - 1, None, float("nan")], ids=str)
def test_what_is_not_told_is_none(path: Path, gone: Any) -> None:
    """amdsmi says "N/A", in older versions all ones of as many bits as a field has."""
    library, module, _ = open_fake_amd(path=path)
    widths = {"energy_accumulator": 64, "xgmi_read_data_acc": 64, "xgmi_write_data_acc": 64}
    table = module.answers["amdsmi_get_gpu_metrics_info"]["[0]"][0]
    for name, value in table.items():
        bits = 64 if "residency" in name else widths.get(name, 16)
        nothing = 2**bits - 1 if isinstance(gone, int) else gone
        table[name] = [nothing] * len(value) if isinstance(value, list) else nothing
    for function in (
        "amdsmi_get_gpu_vram_usage",
        "amdsmi_get_power_cap_info",
        "amdsmi_get_gpu_total_ecc_count",
    ):
        told = module.answers[function]["[0]"][0]
        bits = 32 if "vram" in function else 64
        told.update(dict.fromkeys(told, 2**bits - 1 if isinstance(gone, int) else gone))
    found = library.sample(0)
    left = {one.name for one in fields(found) if getattr(found, one.name) is not None}
    assert left == {"time_unix", "gpu", "slowdown_celsius", "sm_clock_max_mhz", "processes"}


@pytest.mark.parametrize("function", READINGS)
@pytest.mark.parametrize(
    "error",
    [AmdSmiLibraryException(NOT_SUPPORTED), AttributeError(), ValueError("odd")],
    ids=["no", "old", "odd"],
)
def test_a_function_that_fails_leaves_the_others(function: str, error: Exception) -> None:
    library, module, _ = open_fake_amd({function: error}, path=MI300X)
    assert library.device_count == 2
    library.identity(0), library.driver_version, library.limits(0), library.hip_numbers()
    found = library.sample(0)
    assert found.gpu == 0
    assert (found.power_watts is None) == (function == "amdsmi_get_gpu_metrics_info")
    assert (found.memory_used_bytes is None) == (function == "amdsmi_get_gpu_vram_usage")
    assert any(line.startswith(f"{function}: ") and "\n" not in line for line in library.missing)
    if isinstance(error, AmdSmiLibraryException):
        asked = module.calls.count(function)
        library.sample(0)
        assert module.calls.count(function) <= asked + (function == "amdsmi_get_clock_info")
        assert not library.error_transitions()


def test_a_lost_gpu_is_told_once_and_comes_back() -> None:
    library, module, clock = open_fake_amd()
    library.sample(0)
    assert library.error_transitions() == []
    module.lost = AmdSmiLibraryException(NOT_FOUND)
    assert library.sample(0).power_watts is None
    words = "AMDSMI_STATUS_NOT_FOUND - Device Not found"
    assert library.error_transitions() == [
        ("gpu_error", {"gpu": 0, "function": "amdsmi_get_gpu_metrics_info", "error": words})
    ]
    library.sample(0)
    assert library.error_transitions() == []
    clock.now += 6.0
    assert library.sample(0).power_watts == 144
    assert library.error_transitions() == [("gpu_recovered", {"gpu": 0})]


def test_identity_names_a_gpu_as_hip_does() -> None:
    library, module, _ = open_fake_amd()
    told = {
        "gpu": 0,
        "name": "AMD Instinct MI250X",
        "uuid": "GPU-a32343daf897162a",
        "pci_bus_id": "00000000:C1:00.0",
    }
    assert library.identity(0).as_dict() == told
    older, module, _ = open_fake_amd({"amdsmi_get_gpu_enumeration_info": AttributeError()})
    assert older.identity(0).as_dict() == told, "of the serial number, in upper case"
    assert older.hip_numbers() == [0, 1, 2, 3]
    module.change("amdsmi_get_gpu_asic_info", 0, asic_serial="N/A", market_name="N/A")
    module.set("amdsmi_get_gpu_device_bdf", *["N/A"] * 4)
    assert older.identity(0).as_dict() == {"gpu": 0, "name": None, "uuid": None, "pci_bus_id": None}


def test_limits_and_versions() -> None:
    library, module, _ = open_fake_amd()
    assert (library.driver_version, library.name(3)) == ("6.7.0", "AMD Instinct MI250X")
    assert library.limits(0) == GpuLimits(65_520 * MIB, 24_520 * MIB, about(560.0), 1700)
    module.change("amdsmi_get_power_cap_info", 0, power_cap=560)
    assert library.limits(0).power_limit_watts == 560.0, "as some versions of ROCm give it"


def test_the_energy_counter_s_unit_is_rounded_by_the_library() -> None:
    library, module, _ = open_fake_amd()
    assert energy_unit_joules(library, 0) == 2.0**-16
    module.change("amdsmi_get_energy_count", 0, counter_resolution=1.0)
    assert energy_unit_joules(library, 0) == about(1e-6)
    module.change("amdsmi_get_energy_count", 0, counter_resolution="N/A")
    assert energy_unit_joules(library, 0) is None


def test_a_closed_door_opens_again() -> None:
    library, module, _ = open_fake_amd()
    assert library.sample(0).power_watts == 144
    library.close()
    assert module.calls[-1] == "amdsmi_shut_down"
    assert library.sample(0).power_watts == 144
