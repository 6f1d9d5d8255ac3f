"""Numbers as people read them."""

from __future__ import annotations

import pytest

from engine.config import environment
from engine.config.knobs.catalogue import UNSET
from workbench.text import words


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "—"), (0.0123456789, "12.3 ms"), (0.2143, "214.3 ms"), (1.239, "1.24 s"), (42.04, "42.0 s"),
     (185, "3 min 05 s"), (7_800, "2 h 10 min")],
)  # fmt: skip
def test_durations_have_the_unit_that_suits_them(value: float | None, text: str) -> None:
    assert words.seconds(value) == text


def test_sizes_and_counts_are_short() -> None:
    assert words.gib(int(0.54 * 2**30)) == "0.54 GiB"
    assert words.gib(5 * 2**20) == "5.0 MiB"
    assert (words.gib(3 * 2**10), words.gib(360), words.gib(0)) == ("3.0 KiB", "360 bytes", "0 bytes")
    assert words.count(1_353_120) == "1.4 M"
    assert words.number(12345.678) == "12,346"
    losses = [words.loss(value) for value in (2.25, 0.00123, 2.8e-05, 0.0, None)]
    assert losses == ["2.2500", "0.0012", "2.8e-05", "0.0000", "—"]
    assert words.percent(0.123, 1) == "12.3 %"
    assert words.interval(9545.4, 9958.1) == "9,545 – 9,958"
    assert words.interval(None, 1.0) == ""


def test_layouts_name_only_what_is_split() -> None:
    assert words.layout({"dp": 2, "tp": 2, "pp": 1, "zero_stage": 3}) == "dp2 · tp2 · ZeRO-3"
    assert words.layout({"dp": 1, "tp": 1, "pp": 1, "zero_stage": 0}) == "1 rank"
    assert words.layout({"dp": 1, "tp": 1, "pp": 1, "zero_stage": 0, "ranks": 2}) == "2 ranks"
    assert words.layout(None) == "—"
    split = {"dp": 2, "cp": 2, "ep": 4, "cp_method": "ulysses", "zero_stage": 3, "shard_ranks": 2}
    assert words.layout(split) == "dp2 · cp2 ulysses · ep4 · ZeRO-3 over 2"
    assert words.layout({"dp": 4, "cp": 1, "cp_method": "ring", "shard_ranks": None}) == "dp4"


def test_a_choice_without_a_value_means_all_where_it_does() -> None:
    assert (words.choice("parallel.shard_ranks", None), words.choice("parallel.shard_ranks", 2)) == (
        "all",
        "2",
    )
    assert words.choice("memory.limit_gib", None) == "—"


def test_a_variable_keeps_its_name_and_is_unset_where_the_machine_decides() -> None:
    key = f"{environment.SECTION}.OMP_NUM_THREADS"
    assert words.short(key) == "OMP_NUM_THREADS"
    assert (words.choice(key, None), words.choice(key, 2)) == (UNSET, "2")
    assert words.point({key: None}) == "OMP_NUM_THREADS unset"


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([0, 1], "0, 1"),
        ([3, 2, 1, 0, 6], "0 to 3, 6"),
        ([0, 2, 4, 5, 6], "0, 2, 4 to 6"),
    ],
)
def test_neighbouring_ranks_are_told_together(ranks: list[int], text: str) -> None:
    assert words.ranks(ranks) == text


def test_one_of_several_things_has_no_plural() -> None:
    assert [words.several(number, "ranks") for number in (1, 2, 1_000)] == [
        "1 rank",
        "2 ranks",
        "1,000 ranks",
    ]


def test_ranks_that_are_named_are_one_or_several() -> None:
    assert [words.named_ranks(ranks) for ranks in ([2], [0, 1])] == ["rank 2", "ranks 0, 1"]
    assert words.named_ranks(range(10)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"


def test_a_point_reads_as_layout_and_knobs() -> None:
    values = {"parallel.dp": 4, "parallel.tp": 1, "batch.micro_batch": 8, "compression.ratio": 0.0123456789}
    assert words.point(values) == "dp4, micro-batch 8, ratio 0.01235"


def test_ages_and_endings_are_words() -> None:
    assert words.age_text(100.0, now=107.0) == "7 s ago"
    assert words.age_text(0.0, now=90_000.0) == "—"
    assert words.age_text(1.0, now=90_001.0) == "1 d ago"
    assert words.ending_words("oom") == "out of memory"
    assert words.ending_words("timed_out") == "timed out"
    assert words.look("something new")[0] == "gray"


@pytest.mark.parametrize(
    ("seconds", "told"), [(0.2, "under a second"), (12.3, "about 12 s"), (185, "about 3 min 05 s")]
)
def test_an_estimate_says_so_once(seconds: float, told: str) -> None:
    assert words.estimate(seconds) == told


def test_a_command_in_a_sentence_is_code_where_markdown_is_read_and_bare_where_not() -> None:
    said = "not calibrated: run `workbench calibrate --ranks 4`, not `rm_x`"
    assert words.escape(said) == r"not calibrated\: run `workbench calibrate --ranks 4`, not \`rm\_x\`"
    assert words.plain_commands(said) == "not calibrated: run workbench calibrate --ranks 4, not `rm_x`"


def test_a_name_as_code_is_shown_letter_by_letter() -> None:
    assert words.code("a*b*") == "`a*b*`"
    assert words.code("a`b``c") == "``` a`b``c ```"
