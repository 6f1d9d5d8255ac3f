"""Numbers of a run that has no summary yet: one that still goes on, or one that was cut off."""

from __future__ import annotations

from dataclasses import replace

from engine.config.errors import InputError
from engine.lifecycle import referred, summary_of
from engine.run import run_folder
from workbench import archive
from workbench.runs import RunView


def with_numbers_so_far(view: RunView) -> RunView:
    """The same view, with a summary of the records that are there by now."""
    if view.summary is not None:
        return view
    try:
        config = view.config()
    except InputError:
        return view
    records = archive.records(view.folder / run_folder.RECORDS)
    backend = str(view.status.get("backend", "none"))
    return replace(view, summary=summary_of(config, view.id, backend, records, referred(view.folder)))
