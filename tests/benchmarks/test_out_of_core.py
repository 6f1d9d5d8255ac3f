"""The benchmark of plans of activations: it goes on where it was stopped, and its bars count what was measured."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import _out_of_core as out_of_core
from engine.config.run_config import parse

CONFIG = parse(
    {
        "model": {"layers": 3, "hidden": 32, "heads": 2, "kv_heads": 2, "ffn_hidden": 64, "vocabulary": 256},
        "data": {"sequence_length": 64},
        "batch": {"micro_batch": 1, "global_batch": 1},
        "device": "cpu",
    }
)


def test_it_goes_on_where_it_was_stopped_and_every_plan_keeps_its_budget(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    first = out_of_core.run(1, path, CONFIG)
    again = out_of_core.run(2, path, CONFIG)
    assert again == json.loads(path.read_text())
    assert again["setting"] == first["setting"]
    assert all(values[0] == first["seconds"][key][0] for key, values in again["seconds"].items())
    assert {len(values) for values in again["seconds"].values()} == {2}
    rows, bars = out_of_core.rows(again, CONFIG)
    assert len(rows) == out_of_core.BUDGETS
    assert (bars["within"], bars["equal"]) == (out_of_core.BUDGETS, out_of_core.BUDGETS)
    assert rows[-1][1] == "3 keep"
    assert len(out_of_core.again_row(again, CONFIG)) == len(out_of_core.HEADER)
    assert "2 rounds" in out_of_core.title(again, bars)


def test_a_copy_takes_as_long_as_it_is_told(tmp_path: Path) -> None:
    setting = out_of_core.measured_setting(CONFIG, tmp_path)
    block = setting.choices[0]
    for action in ("offload", "disk"):
        cost = block[action]
        assert cost.out_seconds >= 0.9 * cost.away / setting.rates[action]
        assert cost.back_seconds >= 0.9 * cost.away / setting.rates[action]
    assert block["disk"].out_seconds > 2 * block["offload"].out_seconds


def test_lists_are_written_as_stretches() -> None:
    assert out_of_core.written(["full", "full", "keep", "offload", "full"]) == "2 full, keep, offload, full"
