"""The form of a study that tunes a command: what is recognised and refused, its plan, and a study started from it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from streamlit.testing.v1 import AppTest

from tests.support.foreign import printing
from tests.workbench.pages.conftest import Visit
from tests.workbench.pages.test_pages import texts, visit
from tuning.spec import study_file
from workbench.services import jobs
from workbench.text.command_plan import plan

MEGATRON = (
    "torchrun --nproc-per-node 4 pretrain_gpt.py --micro-batch-size 2 --global-batch-size 16 --num-layers 4 "
    "--num-attention-heads 8 --seq-length 128 --tensor-model-parallel-size 1 --log-interval 10"
)


def form(command: str = "", **fields: str) -> AppTest:
    """The page with a command typed into its form."""
    app = visit("tune", view="new")
    trained = next(group for group in app.get("button_group") if group.key == "new-trained")
    trained.set_value("command").run()
    if command:
        app.text_area(key="new-command").set_value(command)
        for key, value in fields.items():
            app.text_input(key=f"new-command-{key}").set_value(value)
        app.run()
    assert not app.exception
    return app


def draft(app: AppTest) -> dict[str, Any]:
    """The study file that the form shows."""
    tree: dict[str, Any] = yaml.safe_load(app.code[-1].value)
    return tree


def test_without_a_command_nothing_can_start(home: Path) -> None:
    app = form()
    assert app.button(key="start").disabled
    assert "Type the command" in texts(app)
    assert not app.error


def test_the_trainer_is_recognised_and_its_plan_shown(home: Path, tmp_path: Path) -> None:
    app = form(MEGATRON, directory=str(tmp_path))
    shown = texts(app)
    assert "Recognised: **Megatron-LM**, 4 ranks" in shown
    assert not app.button(key="start").disabled
    file = study_file.parse(draft(app))
    assert file.command is not None and file.command.directory == str(tmp_path)
    assert file.search_space.by_key["trainer.tensor_parallel"].choices == (1, 2, 4)
    assert plan(file)["first_trial"] in [code.value for code in app.code]
    assert plan(file)["first_trial"].endswith("--log-interval 1")
    refused = next(caption.value for caption in app.caption if "break a rule" in caption.value)
    assert "trainer." in refused
    assert "legal configurations" in shown


def test_the_form_asks_for_what_the_command_line_asks_for(home: Path, tmp_path: Path) -> None:
    """The same command gives the same study, by name and by meaning, whichever of the two it is typed into."""
    from workbench.home.inputs import study_of_command

    app = form(MEGATRON, directory=str(tmp_path))
    typed = study_of_command(MEGATRON, None, [f"trainer.directory={tmp_path}"], None)
    file = study_file.parse(draft(app))
    assert (file.name, file.fingerprint()) == (typed.name, typed.fingerprint())


def test_any_option_and_the_place_of_its_steps_can_be_named(home: Path, tmp_path: Path) -> None:
    app = form("python train.py --block 64 --fast", directory=str(tmp_path), name="mine")
    assert app.button(key="start").disabled
    assert "nothing is turned yet" in texts(app)
    assert app.multiselect(key="new-command-others").options == ["block", "fast"]
    app.multiselect(key="new-command-others").set_value(["block"]).run()
    values = app.multiselect(key="new-command-values-block")
    assert (values.value, values.options) == ([64], ["32", "64", "128"])
    values.set_value([64, 128])
    app.selectbox(key="new-command-source").set_value("file").run()
    app.text_input(key="new-command-steps-file").set_value("logs/*.jsonl")
    app.text_area(key="new-command-more").set_value("base.train.timeout_seconds=50\ntrials=3")
    app.number_input(key="new-command-batch-global-batch").set_value(8)
    app.number_input(key="new-command-data-sequence-length").set_value(32).run()
    file = study_file.parse(draft(app))
    assert file.search_space.by_key["trainer.block"].choices == (64, 128)
    assert (file.name, file.trials, file.config.train.timeout_seconds) == ("mine", 3, 50.0)
    assert file.trainer and file.trainer.steps and file.trainer.steps.file == "logs/*.jsonl"
    assert (file.objective, file.config.tokens_per_step) == ("tokens_per_second", 256)


@pytest.mark.parametrize(
    ("command", "fields", "said"),
    [
        ("python train.py | tee log", {}, "runs without a shell"),
        ("torchrun --nnodes 2 train.py", {}, "one host alone"),
        ("python train.py 'open", {}, "close every quote"),
        ("python train.py --block 1", {"directory": "/no/such/folder"}, "is no folder"),
    ],
)
def test_what_cannot_run_is_said_beside_the_command(
    home: Path, command: str, fields: dict[str, str], said: str
) -> None:
    app = form(command, **fields)
    assert said in texts(app)
    assert app.button(key="start").disabled


def test_a_line_that_is_no_assignment_is_said(home: Path, tmp_path: Path) -> None:
    app = form(MEGATRON, directory=str(tmp_path))
    app.text_area(key="new-command-more").set_value("trials").run()
    assert (
        app.error[0].value.startswith("anything else='trials'")
        and "write it as key=value" in app.error[0].value
    )
    assert app.button(key="start").disabled


@pytest.mark.browser
@pytest.mark.timeout(240)
def test_a_command_is_tuned_from_the_page(
    tmp_path: Path, serve: Callable[[Path], str], visit: Callable[[str], Visit], screenshots: Path | None
) -> None:
    """Typed into the form, looked at, started: the study runs, and the page says what to type now."""
    home, tab = tmp_path / "home", visit("light")
    tab.open(f"{serve(home)}/tune?view=new")
    tab.page.get_by_text("A command of your own").click()
    tab.settle()
    typed = f"{sys.executable} {printing.__file__} --size 2"
    for label, value in (("Command", typed), ("Name", "own"), ("Trials", "3"), ("Steps per trial", "8")):
        box = tab.page.get_by_label(label, exact=True)
        box.fill(value)
        box.press("Tab")
        tab.settle()
    tab.page.get_by_role("combobox", name="Other options of the command").click()
    tab.page.get_by_role("option", name="size").click()
    tab.page.keyboard.press("Escape")  # an open list hides everything else from assistive technology
    tab.settle()
    tab.page.get_by_role("combobox", name="size, today 2").click()
    tab.page.get_by_role("option", name="4", exact=True).click()
    tab.page.keyboard.press("Escape")
    tab.settle()
    assert typed in tab.page.locator(".st-key-new-command-plan").inner_text()
    tab.screenshot(screenshots, "new-command")
    assert not jobs.all_jobs(home), "something ran before the button was pressed"
    tab.page.locator(".st-key-start button").click()
    tab.page.locator(".st-key-tune-badges").get_by_text("ended").wait_for(timeout=150_000)
    tab.settle()
    assert f"{printing.__file__} --size 4" in tab.page.locator(".st-key-study-command").inner_text()
