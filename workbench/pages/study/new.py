"""The form that starts a study: what is fixed, what is searched, and the command line that runs it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import streamlit as st
import yaml

from engine.config.errors import InputError, WorkbenchError
from engine.config.knobs.catalogue import live_parts
from engine.config.presets import PRESETS, is_decoder, resolve
from engine.config.run_config import RunConfig
from engine.run.devices import selection
from tuning.execution import device_slices
from tuning.space.knobs import default_space, offered_space, rare_values
from tuning.spec import study_file, terms
from tuning.spec.study_file import StudyFile
from tuning.storage import study_folder
from workbench.home.settings import JOBS
from workbench.pages.study import new_knobs, new_options
from workbench.pages.widgets import forms
from workbench.pages.widgets.shared import home, pressed, study_rows
from workbench.services import jobs
from workbench.text import words

DRAFT = "study.yaml"
#: How long the page waits for a sign of the study that it started.
SIGN_SECONDS = 30.0
#: Listing the legal configurations of a larger space would make the form slow.
COUNTED_COMBINATIONS = 3_000
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
    """Every section of the form; nothing is written before the button is pressed."""
    tree = _fixed()
    base = tree["base"]
    tree |= new_options.live() | new_options.aims(base)
    searched = st.container()
    with st.expander("More settings", icon=":material/settings:", key="new-more"):
        base |= _nested(forms.changed(RunConfig, forms.section(RunConfig, MORE, "new", 3)), base)
    config, ranks = _config(base), tree["ranks"]
    found, variables = new_options.advanced(config, ranks)
    tree |= _nested(found, tree)
    with searched:
        in_time = isinstance(tree.get("objective"), dict) or "time_to_loss" in (tree.get("objectives") or [])
        offered, usual = (make(config, ranks, in_time) for make in (offered_space, default_space))
        if "live" in tree:
            hot = live_parts()
            offered, usual = ({key: one[key] for key in one if key in hot} for one in (offered, usual))
        turned = new_knobs.knobs(offered, usual, rare_values(config, ranks))
    tree["space"] = turned | variables
    file = _checked(tree)
    look = {"type": "primary", "icon": ":material/play_arrow:", "disabled": file is None}
    if pressed(st.button, "Start the study", "start", **look):
        _start(tree)
    _wait_for_start()


def _fixed() -> dict[str, Any]:
    """Name, size and length of the study, and what all its trials share."""
    with st.container(border=True, key="new-fixed"):
        st.markdown("**What every trial shares**")
        places, start = st.columns(4), {"name": free_name()} | STUDY_DEFAULTS
        study = {
            key: forms.widget(forms.field(StudyFile, key), f"new-{key}", value, place)
            for place, (key, value) in zip(places, start.items(), strict=False)
        }
        values = {"model.preset": _preset(places[3])}
        values |= forms.section(RunConfig, {"data.sequence_length": None, **DEFAULTS}, "new", 4)
        values |= forms.section(RunConfig, {"data.path": None}, "new", 1)
    return study | {"base": _nested(values, {})}


def _preset(place: Any) -> str:
    chosen = place.selectbox(
        "Model",
        list(PRESETS),
        key="new-model-preset",
        format_func=lambda name: f"{name} — {words.count(PRESETS[name].parameters)} parameters",
        help=forms.field(RunConfig, "model.preset").help,
    )
    return str(chosen)


def free_name() -> str:
    """The first of study-1, study-2, ... that no study has."""
    taken = {row.name for row in study_rows()}
    return next(name for number in range(1, len(taken) + 2) if (name := f"study-{number}") not in taken)


def _nested(values: dict[str, Any], tree: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys with a value, put into sections; those without one keep their default."""
    for key, value in values.items():
        if value is not None:
            *sections, name = key.split(".")
            inner = tree
            for part in sections:
                inner = inner.setdefault(part, {})
            inner[name] = value
    return tree


def _config(base: dict[str, Any]) -> RunConfig:
    """The fixed part, for a space that suits it; what is wrong with it is said by the check below."""
    try:
        return StudyFile(name="draft", base=base).config
    except WorkbenchError:
        return RunConfig()


def _checked(tree: dict[str, Any]) -> StudyFile | None:
    """The study if it can run, with what it amounts to; else what has to change."""
    try:
        file = study_file.parse(tree)
        if is_decoder(file.config.model):
            resolve(file.config.model)
        _check_here(file)
        space = file.search_space
        st.caption(f":material/flag: Baseline: {space.label(space.baseline[0])}. {_size(file)}")
    except InputError as error:
        st.error(words.escaped(str(error)), icon=":material/error:")
        return None
    with st.expander("The study file", icon=":material/description:", key="new-file"):
        st.code(_text(tree), language="yaml")
    return file


def _check_here(file: StudyFile) -> None:
    """What else the command line would refuse on this machine."""
    terms.check_idle(file.search_space)
    selection.choose(file.config, file.ranks)
    terms.check_environment_here(file.config, file.knobs, file.ranks, file.simulate is not None)
    if file.side_by_side is not None and file.side_by_side > 1:
        device_slices.slices(file.side_by_side, file.ranks, file.config)


def _size(file: StudyFile) -> str:
    if file.search_space.combinations > COUNTED_COMBINATIONS:
        return f"{file.search_space.combinations:,} combinations before the rules."
    legal = len(file.search_space.legal_points)
    return f"{legal:,} legal configurations, of which {min(file.trials, legal):,} are measured."


def _text(tree: dict[str, Any]) -> str:
    return yaml.safe_dump(tree, sort_keys=False, default_flow_style=None)


def _start(tree: dict[str, Any]) -> None:
    """Write the file and start the command line on it."""
    folder = jobs.new_folder(home())
    given = folder / DRAFT
    given.write_text(_text(tree), encoding="utf-8")
    st.session_state["starting"] = (tree["name"], jobs.start(home(), ["tune", str(given)]))


def _wait_for_start() -> None:
    """Until the study that was started gives its first sign, or says what is wrong."""
    if "starting" not in st.session_state:
        return
    name, job = st.session_state["starting"]
    with st.spinner("Starting the study ..."):
        problem = _first_sign(job, home() / study_folder.STUDIES / name)
    del st.session_state["starting"]
    if problem:
        st.error(words.escaped(problem), icon=":material/error:")
        return
    st.session_state["job"] = (name, job.id)
    st.session_state["started"] = name
    st.rerun()


def _first_sign(job: jobs.Job, folder: Path) -> str | None:
    """None once this job runs the study; else the line with which the command line ended."""
    deadline = time.monotonic() + SIGN_SECONDS
    while time.monotonic() < deadline:
        if not job.alive:
            return jobs.last_error(job)
        if _runs(job, folder):
            return None
        time.sleep(0.1)
    return f"no sign of the study after {SIGN_SECONDS:.0f} s; its output is in {home() / JOBS / job.id}"


def _runs(job: jobs.Job, folder: Path) -> bool:
    try:
        return bool((study_folder.load_study(folder).status.owner or {}).get("pid") == job.pid)
    except InputError:
        return False
