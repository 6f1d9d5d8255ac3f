"""A study begins with another trainer's file: its settings are the base, and what is wrong with them is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from streamlit.testing.v1 import AppTest

from engine.config.errors import InputError
from tests.workbench.pages.test_pages import texts, visit
from workbench.export.importing import read_upload
from workbench.export.mapping.documents import MOST_MIB

HF = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "max_steps": 9,
    "label_smoothing_factor": 0.1,
}


def given(data: bytes) -> AppTest:
    app = visit("tune", view="new")
    next(group for group in app.get("button_group") if group.key == "new-trained").set_value("imported").run()
    assert app.button(key="start").disabled
    app.get("file_uploader")[0].set_value(("args.json", data, "application/json"))
    app.number_input(key="new-imported-ranks").set_value(2)
    app.text_area(key="new-imported-changes").set_value("train.steps=12\ntrain.warmup=2").run()
    assert not app.exception
    return app


def test_its_settings_are_the_base_of_the_study_that_starts(home: Path, started: list[list[str]]) -> None:
    app = given(json.dumps(HF).encode())
    assert "hf, 2 ranks" in texts(app) and "left out: label_smoothing_factor=0.1" in texts(app)
    assert "legal configurations" in texts(app), [one.value for one in app.error]
    app.button(key="start").click().run()
    ((command, path),) = started
    study = yaml.safe_load(Path(path).read_text("utf-8"))
    assert (command, study["ranks"], study["base"]["parallel"]["dp"]) == ("tune", 2, 2)
    assert (study["base"]["batch"]["micro_batch"], study["base"]["train"]["steps"]) == (4, 12), (
        "the file's, the typed"
    )
    assert "parallel.zero_stage" in study["space"]


def test_what_is_wrong_is_said_and_nothing_starts(home: Path) -> None:
    app = given(b"{}")
    assert "is not the file of one trainer" in texts(app) and app.button(key="start").disabled
    app = given(json.dumps(HF).encode())
    for typed, said in (("train.steps", "="), ("no.such.key=1", "unknown key")):
        app.text_area(key="new-imported-changes").set_value(typed).run()
        assert said in texts(app) and app.button(key="start").disabled


@pytest.mark.parametrize("form", ["file", "imported"])
def test_an_upload_says_how_much_is_taken(home: Path, form: str) -> None:
    """By itself Streamlit says 200 MB."""
    app = visit("tune", view="new")
    next(group for group in app.get("button_group") if group.key == "new-trained").set_value(form).run()
    (upload,) = app.get("file_uploader")
    assert upload.proto.max_upload_size_mb == MOST_MIB
    with pytest.raises(InputError, match=f"larger than {MOST_MIB} MiB"):
        read_upload("args.json", b" " * (MOST_MIB * 2**20 + 1))
