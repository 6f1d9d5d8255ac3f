"""What a form asks a plan for: a model by name, a cluster as somebody typed it, and this machine's record."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config.errors import InputError
from workbench.analysis.planning import BATCH, SEQUENCE, model_config, parse_target, record_of_home
from workbench.pages.cluster.plan import EXAMPLE


def test_the_example_of_the_form_is_a_cluster() -> None:
    target = parse_target(EXAMPLE)
    group = target.group
    assert (target.cluster.name, target.cluster.size, group.accelerator.name) == ("ours", 32, "h100-sxm")
    assert group.between.bytes_per_second == pytest.approx(400e9 / 8), "a node's devices share its network"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("groups = [", "is not valid TOML"),
        ('measured = "/etc/passwd"\n' + EXAMPLE, "names a file"),
        ('links = "/etc/passwd"\n' + EXAMPLE, "names a file"),
        (EXAMPLE.replace("nodes = 4", "nodez = 4"), "unknown key"),
        (EXAMPLE.replace("h100-sxm", "h900"), "unknown; choose one of"),
        (EXAMPLE.replace("bytes_per_second = 450e9, ", ""), "no source tells this figure"),
    ],
)
def test_what_was_typed_wrongly_is_said(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_target(text)


def test_a_named_model_has_sizes_as_papers_take_them() -> None:
    config = model_config(["model.preset=22b"])
    assert (config.model.preset, config.precision) == ("22b", "bf16")
    assert (config.batch.global_batch, config.data.sequence_length) == (BATCH, SEQUENCE)


def test_a_home_without_a_calibration_has_no_record(home: Path) -> None:
    found = record_of_home(home)
    assert found.rows == []
    assert "no calibration that holds" in str(found.reason)
