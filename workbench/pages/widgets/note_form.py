"""On a page: the note and tags of a run or a study."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from engine.config.errors import InputError
from workbench.home import notes
from workbench.home.notes import Annotations
from workbench.pages.widgets.common import (
    answer_of_click,
    button_pressed,
    may_fill_in,
    read_lists_again,
    remember,
    run_rows,
    study_rows,
)
from workbench.text import words


def tags_of(folder: Path) -> None:
    """In a row of badges: tags of a run or a study, and a form to change them and its note."""
    annotations = notes.annotations_of(folder)
    for tag in annotations.tags:
        st.badge(words.escape_badge(tag), icon=":material/sell:", color="gray")
    with st.popover("Note and tags", icon=":material/edit_note:", type="tertiary"):
        _form(folder, annotations)


def note_of(folder: Path) -> None:
    """Below that row: the note, and what became of the last change."""
    if note := notes.annotations_of(folder).note:
        with st.container(border=True, key="remarks-note"):
            st.markdown("  \n".join(words.escape(line) for line in note.splitlines()))
    answer_of_click(f"remarks-{folder.name}")


def _form(folder: Path, annotations: Annotations) -> None:
    if not may_fill_in():
        return
    name = folder.name
    tags = st.multiselect(
        "Tags",
        sorted({*_known_tags(), *annotations.tags}),
        default=list(annotations.tags),
        key=f"tags-{name}-{','.join(annotations.tags)}",
        accept_new_options=True,
        max_selections=notes.MOST_TAGS,
        placeholder="Choose or type one",
    )
    note = st.text_area(
        "Note", annotations.note, key=f"note-{name}-{annotations.note}", max_chars=notes.LONGEST_NOTE
    )
    if button_pressed(st.button, "Save", f"remarks-save-{name}", icon=":material/save:"):
        _save(folder, annotations, note, set(tags))
        st.rerun()


def _save(folder: Path, annotations: Annotations, note: str, tags: set[str]) -> None:
    """Only what was changed here is changed: a tag added elsewhere meanwhile stays."""
    place, before = f"remarks-{folder.name}", set(annotations.tags)
    try:
        changed_note = note if note != annotations.note else None
        notes.change_annotations(folder, changed_note, tags - before, before - tags)
    except InputError as error:
        remember(place, str(error), is_refused=True)
    else:
        read_lists_again()
        remember(place, "Saved.", is_refused=False)


def _known_tags() -> set[str]:
    return {tag for rows in (run_rows(), study_rows()) for row in rows for tag in row.tags}
