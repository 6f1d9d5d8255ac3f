"""Reasons for low clocks in words."""

import pynvml
import pytest

from profilers.analysis import machine

NAMES = {
    "GpuIdle": "idle",
    "ApplicationsClocksSetting": "application clocks setting",
    "SwPowerCap": "power cap",
    "HwSlowdown": "hardware slowdown",
    "SyncBoost": "sync boost",
    "SwThermalSlowdown": "thermal slowdown by software",
    "HwThermalSlowdown": "thermal slowdown by hardware",
    "HwPowerBrakeSlowdown": "power brake",
    "DisplayClockSetting": "display clocks setting",
}


@pytest.mark.parametrize("kind", ["Throttle", "Event"])
@pytest.mark.parametrize("name", NAMES)
def test_every_reason_of_the_binding_by_its_old_and_new_name(kind: str, name: str) -> None:
    bit = getattr(pynvml, f"nvmlClocks{kind}Reason{name}")
    assert machine.words(bit) == (NAMES[name],)


def test_the_two_reasons_that_only_the_old_names_have() -> None:
    assert machine.words(pynvml.nvmlClocksThrottleReasonBoardLimit) == ("board limit",)
    assert machine.words(pynvml.nvmlClocksThrottleReasonReliability) == ("reliability limit",)


def test_all_of_them_are_known() -> None:
    for kind in ("Throttle", "Event"):
        found = machine.words(getattr(pynvml, f"nvmlClocks{kind}ReasonAll"))
        assert not [words for words in found if words.startswith("unknown")]


def test_the_roll_up_is_left_out_where_its_cause_is_told() -> None:
    assert machine.words(0x88) == ("power brake",)
    assert machine.words(0x48 | 0x4) == ("power cap", "thermal slowdown by hardware")
    assert machine.words(0x8) == ("hardware slowdown",)


def test_none_and_unknown() -> None:
    assert machine.words(0) == ()
    assert machine.words(0x4 | 1 << 40) == ("power cap", "unknown reason 0x10000000000")


def test_what_someone_chose_does_not_slow() -> None:
    assert machine.slows(0x1 | 0x2 | 0x4 | 0x100) == ("power cap",)
