"""Environment variables as knobs and trials side by side on the form: what is offered, written, and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from engine.config.knobs.catalogue import live_parts
from engine.config.run_config import RunConfig
from tests.support.gpu.torch_gpus import torch_can_use
from tests.workbench.pages.test_pages import texts, visit
from tests.workbench.pages.test_tune import draft
from tuning.spec import study_file
from workbench.pages.study import new_knobs, steering

THREADS, ALGORITHM = "environment.OMP_NUM_THREADS", "environment.NCCL_ALGO"


class Gpus:
    device_count, reason = 4, None

    def name(self, gpu: int) -> str:
        return f"GPU {gpu}"

    def is_divided(self, gpu: int) -> bool:
        return False

    def close(self) -> None:
        pass


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("profilers.gpu.nvml.Nvml", Gpus)
    torch_can_use(monkeypatch, 4)


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))


def on_the_cpu(ranks: int) -> AppTest:
    app = visit("tune", view="new")
    app.number_input(key="new-ranks").set_value(ranks)
    app.selectbox(key="new-device").set_value("cpu")
    return app.run()


def turn(app: AppTest, *keys: str) -> AppTest:
    chooser: Any = app.multiselect(key=new_knobs.CHOSEN)
    return chooser.set_value(list(keys)).run()


def test_a_variable_becomes_a_knob(home: Path) -> None:
    app = on_the_cpu(2)
    assert not any("NCCL" in option for option in app.multiselect(key=new_knobs.CHOSEN).options)
    assert any("threads of a rank's operators" in option for option in
               app.multiselect(key=new_knobs.CHOSEN).options)  # fmt: skip
    assert "4 of 31 have an effect here, 27 have none: 2 ranks run on the CPU" in texts(app)
    turn(app, THREADS)
    values = app.multiselect(key="new-space-environment-OMP-NUM-THREADS")
    assert values.options[0] == "unset"
    values.set_value([None, 1]).run()
    assert draft(app)["space"][THREADS] == [None, 1]
    assert study_file.parse(draft(app)).search_space.by_key[THREADS].choices == (None, 1)
    assert not app.exception


def test_a_knob_without_values_says_so_beside_it(home: Path) -> None:
    app = turn(on_the_cpu(1), THREADS)
    app.multiselect(key="new-space-environment-OMP-NUM-THREADS").set_value([]).run()
    assert "no choices; give at least one" in texts(app)
    assert "no choices" in app.error[0].value
    assert app.button(key="start").disabled


@pytest.mark.parametrize(("value", "words"), [("many", "whole number"), (0, "at least 1"), (1, None)])
def test_a_wrong_value_has_one_clear_line(value: object, words: str | None) -> None:
    found = new_knobs.problem(THREADS, [None, value], RunConfig())
    assert found is None if words is None else found and words in found and "\n" not in found


@pytest.mark.usefixtures("gpus")
def test_gpus_that_are_not_there_are_said_before_anything_starts(home: Path) -> None:
    app = visit("tune", view="new")
    app.selectbox(key="new-device").set_value("cuda").run()
    assert not app.error
    app.number_input(key="new-ranks").set_value(8).run()
    assert "4 GPUs for 8 ranks" in app.error[0].value
    assert app.button(key="start").disabled


@pytest.mark.usefixtures("gpus")
def test_what_can_no_longer_act_stays_and_is_said(home: Path) -> None:
    app = turn(visit("tune", view="new"), ALGORITHM, THREADS)
    assert draft(app)["space"][ALGORITHM] == [None, "Ring", "Tree"]
    assert "have an effect here" not in texts(app)
    app.number_input(key="new-ranks").set_value(8).run()
    assert app.multiselect(key=new_knobs.CHOSEN).value == [ALGORITHM, THREADS]
    assert "acts on NCCL only" in texts(app) and "acts on NCCL only" in app.error[0].value
    assert app.button(key="start").disabled
    app.number_input(key="new-ranks").set_value(4).run()
    assert draft(app)["space"][ALGORITHM] == [None, "Ring", "Tree"]


def test_what_is_asked_of_a_variable_reads_as_the_form_has_it() -> None:
    arguments = {THREADS: [None, 1], "batch.micro_batch": "1,2"}
    assert steering._command_text("narrow", arguments) == f"narrow {THREADS}=unset,1 batch.micro_batch=1,2"


@pytest.mark.usefixtures("cores")
def test_trials_side_by_side_are_dealt_what_the_host_has(home: Path) -> None:
    app = on_the_cpu(2)
    assert "side_by_side" not in draft(app)
    assert "At most 4 here: this host has 8 cores, and a trial has 2 ranks." in texts(app)
    app.number_input(key="new-study-side-by-side").set_value(4).run()
    assert study_file.parse(draft(app)).side_by_side == 4
    app.number_input(key="new-study-side-by-side").set_value(5).run()
    assert "more than this host's 8 cores; at most 4" in app.error[0].value
    assert "at most 4" in texts(app).replace(app.error[0].value, "")
    assert app.button(key="start").disabled


def test_a_run_that_is_tuned_while_it_goes_turns_what_can_be_turned(home: Path) -> None:
    app = on_the_cpu(2)
    app.toggle(key="new-live").set_value(True).run()
    app.number_input(key="new-live-steps").set_value(500).run()
    file = study_file.parse(draft(app))
    assert file.live is not None and file.live.steps == 500
    assert {knob.key for knob in file.knobs} <= set(live_parts())
    chooser: Any = app.multiselect(key=new_knobs.CHOSEN)
    assert not any("Tensor parallel" in option for option in chooser.options)
    assert not app.exception
