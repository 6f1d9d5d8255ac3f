"""Frames: whole ones, half-written ones, and damage in the middle."""

import pytest

from profilers.records.append_file import MARK, MAX_PAYLOAD_BYTES, pack_frame, scan_frames

FRAMES = [pack_frame(payload) for payload in (b"one", b"", b"three")]


def test_whole_frames() -> None:
    scan = scan_frames(b"".join(FRAMES))
    assert scan.payloads == [b"one", b"", b"three"]
    assert scan.consumed == sum(map(len, FRAMES))
    assert not scan.problems


def test_a_half_written_end_waits_without_a_problem() -> None:
    for cut in range(1, len(FRAMES[2])):
        scan = scan_frames(FRAMES[0] + FRAMES[2][:-cut])
        assert (scan.payloads, scan.consumed, scan.problems) == ([b"one"], len(FRAMES[0]), [])


@pytest.mark.parametrize("place", range(len(pack_frame(b"broken"))))
def test_damage_in_the_middle_costs_one_frame_and_is_reported(place: int) -> None:
    broken = bytearray(pack_frame(b"broken"))
    broken[place] ^= 0xFF
    scan = scan_frames(FRAMES[0] + bytes(broken) + FRAMES[2], base=1000)
    assert scan.payloads == [b"one", b"three"]
    start = 1000 + len(FRAMES[0])
    assert scan.problems == [f"bytes {start} to {start + len(broken)} are damaged; skipped"]


def test_noise_with_marks_in_it_is_skipped() -> None:
    scan = scan_frames(MARK * 50 + FRAMES[0] + b"noise" + FRAMES[2])
    assert scan.payloads == [b"one", b"three"]
    assert len(scan.problems) == 2


def test_only_noise_yields_nothing_and_stays() -> None:
    assert scan_frames(b"noise" * 100).consumed == 0


def test_a_payload_may_contain_marks() -> None:
    assert scan_frames(pack_frame(MARK * 3) + FRAMES[0]).payloads == [MARK * 3, b"one"]


def test_oversized_payload_is_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        pack_frame(bytes(MAX_PAYLOAD_BYTES + 1))
