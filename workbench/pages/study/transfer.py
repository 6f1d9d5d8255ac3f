"""A study as one file on the page: taken away from its details, brought in above the list."""

from __future__ import annotations

import io
import json
import shutil
import time
from typing import Any

import streamlit as st

from workbench.home.transfer import export_study
from workbench.pages.widgets.common import button_pressed, draw_guarded, home, may_fill_in
from workbench.services import jobs
from workbench.text import words

UPLOAD = "given.study.zip"
#: Unpacking takes a second or two; a large study with its records longer.
PATIENCE_SECONDS = 300.0
LOOK_SECONDS = 0.1


def download(name: str) -> None:
    """A button; the file is made when it is clicked. Not for a part of a page that is drawn again by itself."""
    st.download_button(
        "Export this study",
        lambda: pack_study(name),
        file_name=f"{name}{export_study.SUFFIX}",
        mime="application/zip",
        key="study-download",
        icon=":material/download:",
        type="tertiary",
        on_click="ignore",
        help="The whole study as one file, without the records of its runs. Elsewhere: workbench study import FILE",
    )


def pack_study(name: str) -> bytes:
    """Study file as it stands now."""
    memory = io.BytesIO()
    export_study.write(home(), name, memory)
    return memory.getvalue()


def upload() -> None:
    """Choose a file, perhaps another name, and press the button; what the command line refuses is shown."""
    import_count = st.session_state.get("study-imports", 0)  # after each import it is closed, and empty again
    with st.popover("Import a study", icon=":material/upload:", key=f"study-upload-{import_count}"):
        if not may_fill_in():
            return
        uploaded = st.file_uploader("Study file", type="zip", key=f"study-file-{import_count}")
        name = st.text_input(
            "Name in this home",
            key=f"study-name-{import_count}",
            placeholder="unchanged",
            help="A name that no other study has.",
        )
        button_look = {"icon": ":material/upload:", "disabled": uploaded is None}
        if button_pressed(st.button, "Import", "study-import", **button_look) and uploaded:
            draw_guarded(lambda: _import(uploaded.getvalue(), name.strip()))


def draw_import_result() -> None:
    """What has just come in, once."""
    if lines := st.session_state.pop("study-imported", None):
        st.success("  \n".join(map(words.escape, lines)), icon=":material/check:")


def _import(data: bytes, name: str) -> None:
    folder = jobs.new_folder(home())
    try:
        (folder / UPLOAD).write_bytes(data)
        name_option = ["--name", name] if name else []
        job = jobs.start(home(), ["study", "import", str(folder / UPLOAD), *name_option, "--json"])
        with st.spinner("Unpacking the study ..."):
            outcome = _outcome(job)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if outcome is None:
        st.error(words.escape(jobs.last_error(job)), icon=":material/error:")
        return
    trials, runs = words.several(outcome["trials"], "trials"), words.several(outcome["runs"], "runs")
    text = f"{outcome['study']} is here with {trials} and {runs}"
    st.session_state["study-imported"] = [text, *outcome["notes"]]
    st.session_state["study-imports"] = st.session_state.get("study-imports", 0) + 1
    st.query_params["id"] = outcome["study"]
    st.rerun()


def _outcome(job: jobs.Job) -> dict[str, Any] | None:
    """The document that the command printed; None if it ended badly, or not in time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while job.alive and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    try:
        text = job.log.read_text("utf-8")
        outcome = json.loads(text[text.index("{") :])
    except (OSError, ValueError):
        return None
    return outcome if isinstance(outcome, dict) else None
