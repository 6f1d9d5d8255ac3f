"""An export for a public trainer: its file, a script that starts it, hooks, where it comes from, and what is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.config.errors import InputError, several
from engine.config.presets import FIELD, is_decoder
from workbench.analysis.studies import StudyDocument
from workbench.export.bundle import Bundle
from workbench.export.launchers.external_trainer import target_of
from workbench.export.launchers.torchrun import exports_of, throughput_text
from workbench.export.mapping import documents, hooks
from workbench.export.mapping.rows import Format, UnexpressedSetting, ranks_of, settings_of
from workbench.export.provenance import provenance, source
from workbench.home.runs import RunView
from workbench.text.output import dumps

_README = """\
# {name}

The configuration that run `{run}` trained{of_study}, for {title}.

- `{file}`: the trainer's own file; `./run.sh {arguments}` starts it on {on_ranks}
- `provenance.json`: run, study, measured numbers with their intervals, versions, and what is lost below
- Measured by this project's engine: {measured}. Measure again: another trainer has another speed.
- Keys are those of {package}. *guarded*: this file passed this project's checks of names, values and divisibility.
  *parsed* and *trained* were tried in this project's tests with that version, not with this file: {tried}.

## What the target does not say

{unexpressed}
"""


def render_format(form: Format, view: RunView, study: StudyDocument | None = None) -> Bundle:
    """The files of a run's export; nothing is written.

    Raises:
        InputError: the run has no valid configuration, is of a trainer that is not this project's, or of another model
            than the decoder.
    """
    run_source = source(view, study)
    config = run_source.view.config()
    if config.trainer:
        raise InputError("--to", form.name, f"is for runs of this project's models; give {target_of(view)}")
    if not is_decoder(config.model):
        remedy = "is a model of this project's engine, which others do not know; export it to torchrun, slurm or k8s"
        raise InputError(FIELD, config.model.workload, remedy)
    document, unexpressed = form.make_document(config), tuple(form.unexpressed(config))
    ranks = ranks_of(settings_of(config))
    for problem in form.problems(documents.usual(form.name) | document, ranks):
        raise AssertionError(f"an export to {form.name} breaks its own rules: {problem}")
    details = {"target": form.name, **facts(form, unexpressed)}
    name = f"{view.labels.get('study') or 'run'}-{view.id}"
    files = {
        form.file: form.text(document),
        "run.sh": form.launch.script(form.file, ranks, view.id, exports_of(config)),
        **hooks.files(config, unexpressed),
        "provenance.json": dumps(provenance(run_source).as_dict() | details) + "\n",
        "README.md": _README.format(
            **_words(form, view, unexpressed), name=name, on_ranks=several(ranks, "ranks")
        ),
    }
    return Bundle(name, files, frozenset({"run.sh"}), unexpressed)


def facts(form: Format, unexpressed: Sequence[UnexpressedSetting]) -> dict[str, Any]:
    """What an export does not say, what its keys were checked against, and which checks were made, of what."""
    return {
        "losses": [setting.as_dict() for setting in unexpressed],
        "checked_against": documents.read_format(form.name)["package"],
        "levels": {"guarded": "this export", **form.test_evidence},
    }


def _words(form: Format, view: RunView, unexpressed: Sequence[UnexpressedSetting]) -> dict[str, Any]:
    study = view.labels.get("study")
    return {
        "run": view.id,
        "of_study": f" (study `{study}`, trial {view.labels.get('trial')})" if study else "",
        "title": form.title,
        "file": form.file,
        "arguments": form.launch.arguments,
        "measured": throughput_text(view),
        "package": documents.read_format(form.name)["package"],
        "tried": "; ".join(f"{level}: {reason}" for level, reason in form.test_evidence.items()),
        "unexpressed": "\n".join(f"- {setting.line}" for setting in unexpressed)
        or "Nothing: it says all of it.",
    }
