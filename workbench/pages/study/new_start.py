"""The end of a form for a new study: what it amounts to or what is wrong, its file, and the button that starts it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import streamlit as st
import yaml

from engine.config.errors import InputError
from engine.config.presets import is_decoder, resolve
from engine.config.run_config import RunConfig
from engine.run.devices import selection
from tuning.execution import device_slices
from tuning.spec import study_file, terms
from tuning.spec.study_file import StudyFile
from tuning.storage import study_folder
from workbench.home import inputs
from workbench.home.settings import JOBS
from workbench.pages.widgets import gauge
from workbench.pages.widgets.common import button_pressed, home, study_rows
from workbench.services import jobs
from workbench.text import command_plan, words

DRAFT = "study.yaml"
#: How long the page waits for a sign of the study that it started.
SIGN_SECONDS = 30.0
#: What changed inside a folder of texts is seen so late at the most.
TEXTS_SECONDS = 10.0
#: Listing the legal configurations of a larger space would make the form slow.
COUNTED_COMBINATIONS = 3_000


def free_name() -> str:
    """The first of study-1, study-2, ... that no study has."""
    names = {row.name for row in study_rows()}
    return next(name for number in range(1, len(names) + 2) if (name := f"study-{number}") not in names)


def nest_values(values: dict[str, Any], tree: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys with a value, put into sections; those without one keep their default."""
    for key, value in values.items():
        if value is not None:
            *sections, name = key.split(".")
            inner = tree
            for part in sections:
                inner = inner.setdefault(part, {})
            inner[name] = value
    return tree


def finish(tree: dict[str, Any] | None, plan: Callable[[StudyFile], None] = lambda file: None) -> None:
    """Of a form that has been filled in so far, None while too little stands in it; ``plan`` shows what will run."""
    file = None if tree is None else _check_study(tree, plan)
    button_look = {"type": "primary", "icon": ":material/play_arrow:", "disabled": file is None}
    if button_pressed(st.button, "Start the study", "start", **button_look) and tree is not None:
        _start(tree)
    _wait_for_start()


def _check_study(tree: dict[str, Any], plan: Callable[[StudyFile], None]) -> StudyFile | None:
    """The study if it can run, with what it amounts to; else what has to change."""
    try:
        file = study_file.parse(tree)
        if is_decoder(file.config.model):
            resolve(file.config.model)
        _check_here(file)
        plan(file)
        st.caption(f":material/flag: Baseline: {_baseline(file)}. {_size(file)}")
        if file.trainer is None and file.simulate is None:
            gauge.draw(file.search_space.config(file.search_space.baseline[0]), "The baseline's")
    except InputError as error:
        st.error(words.escape(str(error)), icon=":material/error:")
        return None
    with st.expander("The study file", icon=":material/description:", key="new-file"):
        st.code(_text(tree), language="yaml")
    return file


def _baseline(file: StudyFile) -> str:
    space = file.search_space
    label = words.escape(space.label(space.baseline[0]))
    return label if file.trainer is None else f"{words.escape(command_plan.baseline(file))} ({label})"


def _check_here(file: StudyFile) -> None:
    """What else the command line would refuse on this machine."""
    terms.check_idle(file.search_space)
    if file.trainer is None and file.simulate is None:
        _check_texts(file.config)
    selection.choose(file.config, file.ranks)
    terms.check_environment_here(file.config, file.knobs, file.ranks, file.simulate is not None)
    if file.side_by_side is not None and file.side_by_side > 1:
        device_slices.slices(file.side_by_side, file.ranks, file.config)


def _check_texts(config: RunConfig) -> None:
    """Looked at again once a path, what is there, or how it is read has changed: a folder may have many files."""
    paths = [config.data.path, *(task.path for task in config.data.tasks)]
    last_writes = tuple(_last_write(Path(path).expanduser()) for path in paths if path is not None)
    read_as = config.model.workload, config.data.model_dump_json(), config.batch.model_dump_json()
    if (problem := _problem_of_texts(config, read_as, last_writes)) is not None:
        raise InputError(*problem)


def _last_write(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size


@st.cache_data(ttl=TEXTS_SECONDS, max_entries=64, show_spinner=False)
def _problem_of_texts(
    _config: RunConfig, read_as: tuple[str, ...], last_writes: tuple[tuple[int, int] | None, ...]
) -> tuple[str, Any, str] | None:
    """Field, value and remedy of what is wrong with the texts of a study; kept by all but the configuration."""
    try:
        inputs.check_texts(_config)
    except InputError as error:
        return f"base.{error.field}", error.value, error.remedy
    return None


def _size(file: StudyFile) -> str:
    if file.search_space.combinations > COUNTED_COMBINATIONS:
        return f"{file.search_space.combinations:,} combinations before the rules."
    count = len(file.search_space.legal_points)
    count_text = words.several(count, "legal configurations")
    return f"{count_text}, of which {min(file.trials, count):,} are measured."


def _text(tree: dict[str, Any]) -> str:
    return yaml.safe_dump(tree, sort_keys=False, default_flow_style=None)


def _start(tree: dict[str, Any]) -> None:
    """Write the file and start the command line on it."""
    folder = jobs.new_folder(home())
    draft = folder / DRAFT
    draft.write_text(_text(tree), encoding="utf-8")
    st.session_state["starting"] = (tree["name"], jobs.start(home(), ["tune", str(draft)]))


def _wait_for_start() -> None:
    """Until the study that was started gives its first sign, or says what is wrong."""
    if "starting" not in st.session_state:
        return
    name, job = st.session_state["starting"]
    with st.spinner("Starting the study ..."):
        problem = _first_sign(job, home() / study_folder.STUDIES / name)
    del st.session_state["starting"]
    if problem:
        st.error(words.escape(problem), icon=":material/error:")
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
        owner = study_folder.load_study(folder).status.owner
        return owner is not None and owner.pid == job.pid
    except InputError:
        return False
