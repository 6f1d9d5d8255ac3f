"""A file of another trainer as people write it: what becomes a setting, what is left out, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.config.errors import InputError
from workbench.export import importing

ZERO = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}
MODEL = {"model.preset": "1b"}


def read(
    folder: Path, name: str, content: dict[str, Any] | str, form: str | None = None
) -> importing.ImportResult:
    file = folder / name
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return importing.read(file, form, 8, MODEL)


def test_a_number_of_elements_may_be_written_with_an_exponent(tmp_path: Path) -> None:
    file = ZERO | {"zero_optimization": {"stage": 1, "reduce_bucket_size": 5e7}}
    found = read(tmp_path, "ds.json", file)
    assert found.values["overlap.bucket_mb"] == pytest.approx(5e7 * 4 / 2**20) and found.left_out == {}
    with pytest.raises(InputError, match="a whole number"):
        read(tmp_path, "ds.json", ZERO | {"zero_optimization": {"stage": 1, "reduce_bucket_size": 0.5}})


def test_a_key_that_makes_a_setting_only_beside_others_is_left_out_without_them(tmp_path: Path) -> None:
    buckets = {"reduce_bucket_size": 1000, "contiguous_gradients": True}
    found = read(
        tmp_path, "ds.json", ZERO | {"zero_optimization": {"stage": 3, **buckets, "overlap_comm": True}}
    )
    assert found.values["parallel.zero_stage"] == 3 and "overlap.bucket_mb" not in found.values
    assert found.left_out == {f"zero_optimization.{key}": value for key, value in buckets.items()}


@pytest.mark.parametrize(
    ("name", "content", "form", "words"),
    [
        ("ds.json", ZERO | {"train_batch_size": "auto"}, None, ("train_batch_size", "import those")),
        ("ds.json", '{"train_batch_size": 8', None, ("not valid JSON", "line 1")),
        ("a.yaml", "distributed_type: [FSDP", None, ("not valid YAML",)),
        ("a.yaml", "- one\n- two\n", None, ("holds no keys",)),
        ("args.txt", "no arguments here\n", "megatron", ("has no arguments", "--num-layers")),
        ("hf.json", {"per_device_train_batch_size": 4}, "megatron", ("has no arguments",)),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told_in_its_own_terms(
    tmp_path: Path, name: str, content: Any, form: str | None, words: tuple[str, ...]
) -> None:
    with pytest.raises(InputError) as told:
        read(tmp_path, name, content, form)
    assert [one for one in words if one not in str(told.value)] == [] and "\n" not in str(told.value)
