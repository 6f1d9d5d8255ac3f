"""What people type is checked, and refused in one line."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from engine.config.errors import InputError
from engine.config.presets import PRESETS, resolve
from engine.config.run_config import RunConfig, load, parse


@pytest.mark.parametrize(
    ("tree", "field", "words"),
    [
        ({"parallel": {"dpp": 2}}, "parallel.dpp", "unknown key; known here: cp, cp_method, dp"),
        ({"colour": 1}, "colour", "unknown key"),
        ({"parallel": {"dp": "two"}}, "parallel.dp", "whole number"),
        ({"parallel": {"dp": 0}}, "parallel.dp", "at least 1"),
        ({"precision": "fp8"}, "precision", "'fp32' or 'bf16'"),
        ({"compression": {"ratio": 1.5}}, "compression.ratio", "at most 1"),
        ({"train": {"steps": True}}, "train.steps", "whole number"),
        (
            {"data": {"tasks": [{"name": "a", "pth": "b"}]}},
            "data.tasks.0.pth",
            "known here: name, path, share",
        ),
        ({"data": 5}, "data", "section with keys of its own"),
        ([], "config", "section with keys of its own"),
    ],
)
def test_bad_input_is_one_line_with_field_value_and_remedy(tree: object, field: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(tree)
    assert caught.value.field == field
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_every_number_is_finite(value: float) -> None:
    plain = RunConfig().flat() | {"memory.budget_gib": 1.0, "memory.limit_gib": 1.0, "train.seconds": 1.0}
    keys = [key for key, usual in plain.items() if isinstance(usual, float)]
    assert len(keys) > 30
    for key in keys:
        with pytest.raises(InputError, match="must be a finite number") as caught:
            RunConfig().with_values({key: value})
        assert caught.value.field == key
    for key in ("model.options", "trainer", "compression.layers"):
        with pytest.raises(InputError, match="must be a finite number") as caught:
            RunConfig().with_values({key: {"x": value}})
        assert caught.value.field == f"{key}.x"


def test_dotted_values_are_set_and_checked() -> None:
    config = parse({}).with_values({"parallel.tp": 2, "memory.recompute": True, "precision": "bf16"})
    assert (config.parallel.tp, config.memory.recompute, config.precision) == (2, "full", "bf16")
    with pytest.raises(InputError, match=r"parallel\.tpp"):
        config.with_values({"parallel.tpp": 2})
    with pytest.raises(InputError, match="no keys of its own"):
        config.with_values({"precision.bits": 2})


def test_a_configuration_survives_its_file(tmp_path: Path) -> None:
    config = parse({"parallel": {"dp": 3}, "data": {"path": "text"}, "memory": {"limit_gib": 2}})
    file = tmp_path / "config.json"
    file.write_text(config.dumps())
    assert load(file) == config


@pytest.mark.parametrize("text", ["", "{", '{"a"', "\x00"])
def test_a_broken_file_is_bad_input(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(InputError, match="cannot be read as JSON"):
        load(file)


def test_presets_have_the_sizes_of_their_names() -> None:
    billions = {"7b": 7, "13b": 13, "22b": 22, "70b": 70, "175b": 175, "1t": 1000}
    for name, size in billions.items():
        assert PRESETS[name].parameters / 1e9 == pytest.approx(size, rel=0.08), name
    assert 1e6 < PRESETS["tiny"].parameters < 3e6


def test_model_sizes_must_fit_together() -> None:
    for values, field in (
        ({"preset": "huge"}, "model.preset"),
        ({"heads": 3}, "model.heads"),
        ({"kv_heads": 3}, "model.kv_heads"),
    ):
        with pytest.raises(InputError) as caught:
            resolve(parse({"model": values}).model)
        assert caught.value.field == field
