"""The form that starts a study: of a model of this project with what is fixed and searched, of a command, of a file,
of what another trainer's file says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

from engine.config.errors import InputError, WorkbenchError
from engine.config.knobs.catalogue import live_parts
from engine.config.presets import PRESETS
from engine.config.run_config import RunConfig
from tuning.space.knobs import default_space, offered_space, other_values
from tuning.spec.study_file import StudyFile
from tuning.spec.trainers.sweep import is_sweep, study_of_sweep
from workbench.export import importing
from workbench.export.importing import ImportResult
from workbench.export.mapping import documents
from workbench.home.inputs import assignments, set_dotted, tree_of
from workbench.pages.study import new_command, new_knobs, new_options, new_start
from workbench.pages.study.new_start import nest_values
from workbench.pages.widgets import forms
from workbench.pages.widgets.common import may_fill_in, wrong_value
from workbench.text import words

#: What a study trains.
MODEL, COMMAND, FILE, IMPORTED = "model", "command", "file", "imported"
TRAINED = {
    MODEL: ":material/deployed_code: A model of the workbench",
    COMMAND: ":material/terminal: A command of your own",
    FILE: ":material/upload_file: What a file says",
    IMPORTED: ":material/move_to_inbox: Another trainer's file",
}
STUDY_DEFAULTS: dict[str, Any] = {"ranks": 4, "trials": 12}
DEFAULTS: dict[str, Any] = {"batch.global_batch": 16, "train.steps": 24, "train.warmup": 4}
MORE = {
    "model.experts": None,
    "batch.micro_batch": None,
    "train.learning_rate": None,
    "train.seed": None,
    "precision": None,
    "device": None,
    "memory.limit_gib": None,
}


def form() -> None:
    """One of four forms; nothing is written before the button is pressed."""
    if not may_fill_in():
        return
    training = st.segmented_control(
        "What every trial trains",
        list(TRAINED),
        default=MODEL,
        required=True,
        key="new-trained",
        format_func=TRAINED.__getitem__,
        label_visibility="collapsed",
    )
    {COMMAND: new_command.form, FILE: _file_form, IMPORTED: _imported_form}.get(training or MODEL, _model)()


def _file_form() -> None:
    """A study file, or a sweep file of W&B or trackio, as ``workbench tune FILE`` takes it."""
    with st.container(border=True, key="new-given-file"):
        upload = st.file_uploader(
            "Study file, or sweep file of W&B or trackio",
            type=["yaml", "yml", "json"],
            max_upload_size=documents.MOST_MIB,
            key="new-given",
            help="As `workbench tune FILE` takes it: it is read, and nothing in it runs before Start. A study that was "
            "exported with its trials comes in on the page Runs, with *Import a study*.",
        )
        tree = None
        if upload is not None:
            try:
                tree = _study_of(upload.name, upload.getvalue())
            except InputError as error:
                wrong_value(str(error))
        if tree is not None and isinstance(tree.get("trainer"), dict):
            tree["trainer"].setdefault("directory", _directory())
    new_start.finish(tree, new_command.plan)


def _imported_form() -> None:
    """A study whose base is what another trainer's file says, with what is changed of that."""
    with st.container(border=True, key="new-imported"):
        st.markdown("**What every trial shares**")
        start = {"name": new_start.free_name(), "trials": STUDY_DEFAULTS["trials"]}
        places = st.columns(2)
        tree: dict[str, Any] = {
            key: forms.widget(forms.field(StudyFile, key), f"new-imported-{key}", value, place)
            for place, (key, value) in zip(places, start.items(), strict=True)
        }
        imported = forms.imported_file("new-imported")
        text = st.text_area(
            "Changes to it, KEY=VALUE, one a line",
            key="new-imported-changes",
            placeholder="model.preset=1b\ntrain.steps=24",
            height=100,
            width=420,
            help="What the file does not say, or what a trial needs less of: as `--set` of `workbench import`.",
        )
        base = None if imported is None else _changed_base(imported, text or "")
    if imported is None or base is None:
        new_start.finish(None)
        return
    config, ranks = _config(base), imported.ranks
    space = new_knobs.knobs(
        offered_space(config, ranks), default_space(config, ranks), other_values(config, ranks)
    )
    new_start.finish(tree | {"ranks": ranks, "base": base, "space": space})


def _changed_base(imported: ImportResult, text: str) -> dict[str, Any] | None:
    """The file's settings with the changes; None, and a line that says why, where those cannot be read."""
    base = importing.tree(imported.values)
    try:
        for key, value in assignments(
            [line.strip() for line in text.splitlines() if line.strip()], "changes"
        ).items():
            set_dotted(base, key, value)
    except InputError as error:
        wrong_value(str(error))
        return None
    return base


def _study_of(name: str, data: bytes) -> dict[str, Any]:
    """The sections of a study file; those of the study that a sweep asks for.

    Raises:
        InputError: it cannot be read, or a sweep has what is not supported.
    """
    tree = tree_of(data, name, "study")
    return study_of_sweep(tree, Path(name).stem) if is_sweep(tree) else tree


def _directory() -> str:
    text = st.text_input(
        "Folder that the command starts in",
        str(Path.cwd()),
        key="new-given-directory",
        help="Paths in the command are as seen from here. (`trainer.directory`)",
    )
    return text.strip() or str(Path.cwd())


def _model() -> None:
    """Every section of a study whose trials train a model of this project."""
    tree = _shared_form()
    base = tree["base"]
    tree |= new_options.live() | new_options.aims(base)
    space_box = st.container()
    with st.expander("More settings", icon=":material/settings:", key="new-more"):
        base |= nest_values(forms.changed_values(RunConfig, forms.section(RunConfig, MORE, "new", 3)), base)
    config, ranks = _config(base), tree["ranks"]
    options, variables = new_options.advanced_options(config, ranks)
    tree |= nest_values(options, tree)
    with space_box:
        in_time = new_options.learns(tree.get("objective"))
        whole_space, usual_space = (make(config, ranks, in_time) for make in (offered_space, default_space))
        if "live" in tree:
            hot = live_parts()
            whole_space, usual_space = (
                {key: space[key] for key in space if key in hot} for space in (whole_space, usual_space)
            )
        knobs = new_knobs.knobs(whole_space, usual_space, other_values(config, ranks, in_time))
    tree["space"] = knobs | variables
    new_start.finish(tree)


def _shared_form() -> dict[str, Any]:
    """Name, size and length of the study, and what all its trials share."""
    with st.container(border=True, key="new-fixed"):
        st.markdown("**What every trial shares**")
        places, start = st.columns(4), {"name": new_start.free_name()} | STUDY_DEFAULTS
        study = {
            key: forms.widget(forms.field(StudyFile, key), f"new-{key}", value, place)
            for place, (key, value) in zip(places, start.items(), strict=False)
        }
        values = {"model.preset": _preset(places[3])}
        values |= forms.section(RunConfig, {"data.sequence_length": None, **DEFAULTS}, "new", 4)
        values |= forms.section(RunConfig, {"data.path": None}, "new", 1)
    return study | {"base": nest_values(values, {})}


def _preset(place: Any) -> str:
    preset = place.selectbox(
        "Model (parameters)",
        list(PRESETS),
        key="new-model-preset",
        format_func=lambda name: f"{name} ({words.count(PRESETS[name].parameters)})",
        help=forms.field(RunConfig, "model.preset").help,
    )
    return str(preset)


def _config(base: dict[str, Any]) -> RunConfig:
    """The fixed part, for a space that suits it; what is wrong with it is said by the check below."""
    try:
        return StudyFile(name="draft", base=base).config
    except WorkbenchError:
        return RunConfig()
