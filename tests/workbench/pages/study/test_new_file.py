"""A study is started from a file: a study file or a sweep of W&B is read, what is wrong with it is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from streamlit.testing.v1 import AppTest

from tests.workbench.pages.test_pages import texts, visit

STUDY = """
name: given
ranks: 2
trials: 3
base: {train: {steps: 12, warmup: 2}, batch: {global_batch: 8}}
space: {batch.micro_batch: [1, 2]}
"""
SWEEP = """
method: random
run_cap: 4
metric: {name: step_time, goal: minimize}
parameters: {micro-batch-size: {values: [1, 2, 4]}}
command: [torchrun, --nproc-per-node, "2", pretrain_gpt.py, --num-layers, "4", "${args}"]
"""


def given(name: str, text: str) -> AppTest:
    app = visit("tune", view="new")
    next(group for group in app.get("button_group") if group.key == "new-trained").set_value("file").run()
    assert app.button(key="start").disabled
    app.get("file_uploader")[0].set_value((name, text.encode(), "application/yaml"))
    app.run()
    assert not app.exception
    return app


def draft(app: AppTest) -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load(app.code[-1].value)
    return tree


def test_a_study_file_is_started_as_it_is(home: Path, started: list[list[str]]) -> None:
    app = given("study.yaml", STUDY)
    assert draft(app) == yaml.safe_load(STUDY)
    assert "2 legal configurations" in texts(app)
    app.button(key="start").click().run()
    ((command, path),) = started
    assert command == "tune"
    assert yaml.safe_load(Path(path).read_text("utf-8")) == yaml.safe_load(STUDY)


def test_a_sweep_becomes_a_study_of_its_command(home: Path, tmp_path: Path) -> None:
    app = given("my-sweep.yaml", SWEEP)
    assert "What will run" in texts(app)
    app.text_input(key="new-given-directory").set_value(str(tmp_path)).run()
    assert not app.exception
    tree = draft(app)
    assert (tree["name"], tree["trials"]) == ("my-sweep", 4)
    assert tree["trainer"]["directory"] == str(tmp_path)
    assert not app.button(key="start").disabled


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "study='wrong.yaml': is not valid YAML"),
        ("- 1", "holds no sections"),
        ("parameters: {a: {values: [1]}}\nsurprise: 1", "surprise=1: is not supported in a sweep"),
        ("name: given\nspace: {no.such: [1]}", "no.such"),
    ],
)
def test_what_is_wrong_with_it_is_said_and_nothing_starts(home: Path, text: str, said: str) -> None:
    app = given("wrong.yaml", text)
    assert said in texts(app)
    assert app.button(key="start").disabled
