"""Page Export: the exact configuration of a run or of a study's winner, to look at and to take away."""

from __future__ import annotations

import json
from typing import Any

import streamlit as st

from engine.config.run_config import flatten
from workbench.analysis.studies import StudyDocument, run_to_export
from workbench.export import bundle, targets
from workbench.export.bundle import Bundle
from workbench.home import resolve
from workbench.home.resolve import Target
from workbench.pages.widgets.common import (
    draw_guarded,
    home,
    limit_options,
    metrics,
    nothing_yet,
    restore_choice,
    run_rows,
    save_choice,
    say_gone,
    study_rows,
)
from workbench.pages.widgets.heading import heading
from workbench.pages.widgets.trial_table import follow_study
from workbench.text import words

PROVENANCE = "provenance.json"
LANGUAGES = {"json": "json", "sh": "bash", "md": "markdown", "yaml": "yaml", "py": "python"}


def page() -> None:
    """Choose, look, download."""
    heading(
        "Export",
        "A folder with the exact configuration and a script that trains it again, without this page.",
    )
    names = _names()
    if not names:
        say_gone("export")
        nothing_yet("There is nothing to export yet.", "workbench train examples/train.yaml")
        return
    with st.container(horizontal=True, vertical_alignment="bottom", key="export-choice"):
        options = limit_options("export", list(names))
        restore_choice("export", options)
        selected = st.selectbox(
            "Run or study",
            options,
            key="export",
            format_func=names.__getitem__,
            width=560,
        )
        titles = {target.name: target.title for target in targets.TARGETS}
        target = st.selectbox("Target", list(titles), key="target", width=200, help=_target_titles(titles))
    save_choice("export", selected)
    draw_guarded(lambda: _offer(selected, target))


def _target_titles(titles: dict[str, str]) -> str:
    return "; ".join(f"{name}: {title}" for name, title in titles.items())


def _names() -> dict[str, str]:
    """Studies first: the run they recommend is what people want most."""
    titles = {row.name: f"{row.name} — study, {words.ending_words(row.state)}" for row in study_rows()}
    for row in run_rows():
        rate = f", {row.tokens_per_second:,.0f} tokens/s" if row.tokens_per_second else ""
        state = words.ending_words(row.outcome or row.state)
        titles[row.id] = f"{row.id} — {words.layout(row.layout)}, {state}{rate}"
    return titles


def _offer(name: str, target: str) -> None:
    origin = resolve.resolve(home(), name)
    description, export_bundle = _render_export(origin, target)
    if origin.kind == "study":
        st.caption(f":material/emoji_events: From study {words.escape(f'{origin.id}: {description}')}.")
    _provenance(json.loads(export_bundle.files.get(PROVENANCE, "{}")))
    _losses(export_bundle, targets.find_target(target))
    st.download_button(
        "Download as zip",
        bundle.zip_bytes(export_bundle),
        file_name=f"{export_bundle.name}-{target}.zip",
        mime="application/zip",
        key="download",
        type="primary",
        icon=":material/download:",
        on_click="ignore",
    )
    _files(export_bundle)
    with st.expander("On the command line", icon=":material/terminal:", key="export-command"):
        st.code(f"workbench export {origin.id} --to {target} --out {export_bundle.name}", language="bash")


def _render_export(origin: Target, target: str) -> tuple[str, Bundle]:
    """Which run of a study it is, and its files; of a large study worked out once until something changes."""

    def make(document: StudyDocument | None = None) -> tuple[str, Bundle]:
        run, study, description = run_to_export(home(), origin, document)
        return description, targets.find_target(target).render(run, study)

    if origin.kind == "run":
        return make()
    study = follow_study(origin.id)
    document = study.snapshot().document
    return study.more(f"export to {target}", document, lambda: make(document))


def _provenance(document: dict[str, Any]) -> None:
    """Where the configuration comes from, and what was measured with it."""
    measured = document.get("measured") or {}
    rate = measured.get("tokens_per_second_interval") or {}
    step = measured.get("step_seconds") or {}
    machine = document.get("measured_on") or {}
    interval = words.interval(rate.get("low"), rate.get("high"))
    origin = (
        f"study {document['study']}, trial {document['trial']}" if document.get("study") else "a single run"
    )
    metrics(
        {
            "Run": (words.ending_words(document.get("outcome") or "not ended yet"), origin),
            "Tokens/s of this run": (words.number(measured.get("tokens_per_second")), interval),
            "Step time, mean": (
                words.seconds(step.get("mean") or step.get("median")),
                f"{measured.get('measured_steps', 0)} measured steps",
            ),
            "Ranks": (
                words.number(machine.get("world_size")),
                f"{machine.get('backend')} on {machine.get('host')}",
            ),
        },
        "export-numbers",
    )


def _losses(export_bundle: Bundle, target: targets.Target) -> None:
    """What the target cannot say, with what to do about it; and what was checked."""
    if target.format is not None:
        facts = target.facts(export_bundle)
        checks = "; ".join(
            f"{level}: {checks_of_level}" for level, checks_of_level in facts["levels"].items()
        )
        st.caption(f"Keys of {facts['checked_against']}. {checks}.")
    if not export_bundle.unexpressed:
        return
    count = len(export_bundle.unexpressed)
    st.markdown(f"**{'1 setting is' if count == 1 else f'{count} settings are'} not in it**")
    rows = {
        "setting": [row.setting for row in export_bundle.unexpressed],
        "value": [words.value(row.value) for row in export_bundle.unexpressed],
        "why": [row.why for row in export_bundle.unexpressed],
        "instead": [row.instead for row in export_bundle.unexpressed],
    }
    st.dataframe(rows, key="export-losses", hide_index=True, height="auto")


def _files(export_bundle: Bundle) -> None:
    views = st.tabs([*export_bundle.files, "Provenance in brief"], key="export-files")
    for view, (name, text) in zip(views, export_bundle.files.items(), strict=False):
        with view:
            language = LANGUAGES.get(name.rpartition(".")[2])
            st.code(text, language=language, line_numbers=True, wrap_lines=True)
    with views[-1]:
        flat = flatten(json.loads(export_bundle.files.get(PROVENANCE, "{}")))
        scalars = {key: value for key, value in flat.items() if not isinstance(value, list | dict)}
        rows = {"what": list(scalars), "value": [words.value(value) for value in scalars.values()]}
        st.dataframe(rows, key="export-provenance", hide_index=True, height=420)


if __name__ == "__main__":
    page()
