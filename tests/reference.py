"""The pages of ``docs/reference``, written from registries, types and the command line, and the pictures of schedules.

``python -m tests.reference`` writes them; ``tests/test_docs.py`` asks that they are up to date, of the pictures
``tests/workbench/commands/test_predict_schedule.py``.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import typer.main
from msgspec import structs
from pydantic import BaseModel

from engine.config.environment import VARIABLES, Environment
from engine.config.methods.compression_methods import COMPRESSION_METHODS
from engine.config.methods.outer_methods import OUTER_METHODS
from engine.config.presets import PRESETS
from engine.config.run_config import RunConfig
from engine.config.sections import OneOf
from engine.run.outcome import Ending
from engine.schedules.registry import SCHEDULES
from profilers.model import run_summary
from profilers.records import schema
from profilers.records.operations import OPERATIONS
from tests.support.knob_tables import knob_tables
from tests.support.markdown import spelled, table
from tuning.analysis.recommendation import TIE_RULES
from tuning.spec.objectives import KNOWN as OBJECTIVES
from tuning.spec.sampler_choice import SAMPLERS
from tuning.spec.study_file import StudyFile
from workbench.cli import app
from workbench.export.mapping.documents import read_format as documents_known
from workbench.export.mapping.rows import Level
from workbench.export.mapping.unexpressed import settings as export_settings
from workbench.export.targets import TARGETS
from workbench.figures.anatomy.schedule import schedule_series, schedule_svg, series_of_run
from workbench.text.control import Action

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
#: The picture of 1F1B with stages left out.
PARTIAL = "partial"
PICTURES = FOLDER.parent / "images" / "schedules"
WRITTEN = "<!-- Written by `python -m tests.reference`; not by hand. -->"


def sentence(text: str | None) -> str:
    """A docstring as running text for Markdown: one line a paragraph, code in single quotes."""
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    kept = [
        " ".join(part.split()) for part in paragraphs if not part.lstrip().startswith(("Raises:", "Args:"))
    ]
    return "\n\n".join(re.sub(r":\w+:`~?([^`]+)`", r"`\1`", part).replace("``", "`") for part in kept)


def values(facts: dict[str, Any], names: tuple[str, ...] | None, defs: dict[str, Any]) -> str:
    """The legal values of a field, from its JSON schema: choices, a range, or a type."""
    if names:
        return ", ".join(f"`{name}`" for name in names)
    if "$ref" in facts:
        return values(defs[facts["$ref"].rpartition("/")[2]], None, defs)
    if "anyOf" in facts:
        return ", ".join(dict.fromkeys(values(part, None, defs) for part in facts["anyOf"]))
    if "enum" in facts or "const" in facts:
        return ", ".join(f"`{value}`" for value in facts.get("enum", [facts.get("const")]))
    kind = str(facts.get("type", "any value"))
    if kind == "array":
        return f"list of {values(facts.get('items', {}), None, defs)}"
    if kind in ("integer", "number"):
        return number(kind, facts)
    return {"boolean": "`true`, `false`", "string": "text", "null": "`null`", "object": "mapping"}.get(
        kind, kind
    )


def number(kind: str, facts: dict[str, Any]) -> str:
    """A number's type with its range."""
    bounds = [
        f"{word} {facts[key]:,}"
        for key, word in (
            ("minimum", "at least"),
            ("exclusiveMinimum", "above"),
            ("maximum", "at most"),
            ("exclusiveMaximum", "below"),
        )
        if key in facts
    ]
    name = "whole number" if kind == "integer" else "number"
    return " ".join([name, " and ".join(bounds)]).strip()


def choices(section: type[BaseModel], name: str) -> tuple[str, ...] | None:
    """The names of a registry that a text field takes; None for other fields."""
    found = [entry for entry in section.model_fields[name].metadata if isinstance(entry, OneOf)]
    return tuple(found[0].names()) if found else None


def fields(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Each field that is no section of its own: its key, its values, its default."""
    shape = section.model_json_schema()
    for name, field in section.model_fields.items():
        if inspect.isclass(field.annotation) and issubclass(field.annotation, BaseModel):
            continue
        default = field.get_default(call_default_factory=True) if not field.is_required() else None
        shown = "required" if field.is_required() else f"`{spelled(default)}`"
        facts = shape["properties"][name]
        yield f"`{prefix}{name}`", values(facts, choices(section, name), shape.get("$defs", {})), shown


def sections(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """All sections below a model with the dotted prefix of their keys, the model itself first."""
    yield prefix, model
    for name, field in model.model_fields.items():
        if (
            inspect.isclass(field.annotation)
            and issubclass(field.annotation, BaseModel)
            and field.annotation is not Environment
        ):
            yield from sections(field.annotation, f"{prefix}{name}.")


def configuration() -> str:
    """Every key of a run's configuration."""
    parts = ["Set a key in a YAML file under its section, or on the command line: `--set parallel.tp=2`."]
    for prefix, section in sections(RunConfig):
        title = prefix.rstrip(".") or "Top level"
        parts += [
            f"## {title}",
            sentence(section.__doc__),
            table(("key", "values", "default"), fields(section, prefix)),
        ]
    head = tuple(field.name for field in dataclasses.fields(next(iter(PRESETS.values()))))
    sizes = (
        (f"`{name}`", *dataclasses.astuple(shape), f"{shape.parameters / 1e6:,.1f} M")
        for name, shape in PRESETS.items()
    )
    parts += ["## Presets of `model.preset`", table(("name", *head, "parameters"), sizes)]
    return page("Configuration of a run", parts)


def environment() -> str:
    """Environment variables that a run may set."""
    shape = Environment.model_json_schema()
    rows = [
        (
            f"`{name}`",
            values(shape["properties"][name], None, {}).removesuffix(", `null`"),
            variable.effect,
            variable.since,
            variable.acts,
            variable.read,
        )
        for name, variable in VARIABLES.items()
    ]
    return page(
        "Environment variables of ranks",
        [
            "Keys of the section `environment`; `null` leaves a variable as the machine has it.",
            sentence(Environment.__doc__),
            table(("name", "values", "what it does", "since", "acts", "read at"), rows),
        ],
    )


def study_file() -> str:
    """Every key of a study file."""
    parts = [sentence(StudyFile.__doc__), table(("key", "values", "default"), fields(StudyFile))]
    seen: list[type[BaseModel]] = []
    for field in StudyFile.model_fields.values():
        for part in (field.annotation, *typing.get_args(field.annotation)):
            if inspect.isclass(part) and issubclass(part, BaseModel) and part not in seen:
                seen.append(part)
                key = next(name for name, one in StudyFile.model_fields.items() if one is field)
                parts += [
                    f"## {key}",
                    sentence(part.__doc__),
                    table(("key", "values", "default"), fields(part, f"{key}.")),
                ]
    parts += [
        "## Objectives",
        table(
            ("`objective`", "what it is", "shown in", "better"),
            (
                (f"`{name}`", aim.title, aim.unit, "less" if aim.lower else "more")
                for name, aim in OBJECTIVES.items()
            ),
        ),
    ]
    return page("Study file", parts)


def names() -> str:
    """Registries: every name that users write or read."""
    return page(
        "Names",
        [
            "## Compression methods",
            table(
                ("`compression.method`", "paper", "fields that act", "error feedback", "with ZeRO"),
                (
                    (
                        f"`{name}`",
                        paper(method.paper),
                        ", ".join(
                            f"`{one}`" for one in (method.value, *method.fields) if isinstance(one, str)
                        ),
                        "yes" if method.uses_error_feedback else "",
                        "yes" if method.one_way else "",
                    )
                    for name, method in COMPRESSION_METHODS.items()
                ),
            ),
            "## Outer methods",
            table(
                ("`outer.method`", "paper", "fields that act", "sends beside the next steps"),
                (
                    (
                        f"`{name}`",
                        paper(method.paper),
                        ", ".join(f"`{field}`" for field in method.fields),
                        "yes" if method.overlaps else "",
                    )
                    for name, method in OUTER_METHODS.items()
                ),
            ),
            "## Pipeline schedules",
            table(
                ("`schedule.kind`", "paper", "chunks", "stages dealt", "splits backward"),
                (
                    (
                        f"`{name}`",
                        paper(kind.paper),
                        kind.chunks_words,
                        kind.placement.title,
                        "yes" if kind.splits_backward else "",
                    )
                    for name, kind in SCHEDULES.items()
                ),
            ),
            *knob_tables(),
            "## Endings",
            table(
                ("ending", "what a study takes it for", "what to change"),
                (
                    (f"`{ending.value}`", ending.facts.failure_class.value, "; ".join(ending.facts.advice))
                    for ending in Ending
                ),
            ),
            "## Collective operations",
            table(
                ("operation", "operators of torch", "calibrated", "verdict on waiting"),
                (
                    (
                        operation.name.replace("_", "-"),
                        ", ".join(f"`{one}`" for one in operation.operators),
                        "yes" if operation.calibrated else "",
                        f"`exposed_{operation.verdict}`" if operation.verdict else "",
                    )
                    for operation in OPERATIONS
                ),
            ),
            "## Rules that choose among equals",
            "Asked in this order where several configurations are as fast as the fastest one.",
            table(
                ("`decided_by`", "recommended by"),
                ((f"`{rule.name}`", rule.title) for rule in TIE_RULES),
            ),
            "## Samplers",
            table(
                ("`sampler`", "needs", "draws", "objectives", "constraints"),
                (
                    (
                        f"`{sampler.name}`",
                        sampler.package or "",
                        "ordered numbers" if sampler.only_ordered_numbers else "anything",
                        "any number" if sampler.several_objectives else "one",
                        "yes" if sampler.constraints else "no",
                    )
                    for sampler in SAMPLERS
                ),
            ),
            "## Export targets",
            table(
                ("`--to`", "what it is", "start with"),
                ((f"`{target.name}`", target.title, f"`{target.start}`") for target in TARGETS),
            ),
            "## Commands to what goes on",
            table(
                ("`control ID ...`", "arguments", "applies to", "effect"),
                ((f"`{action.value}`", action.arguments, action.targets, action.effect) for action in Action),
            ),
        ],
    )


def exports() -> str:
    """Settings by targets, and each target's table."""
    formats = [target.format for target in TARGETS if target.format is not None]
    marks = {Level.EXPRESSED: "yes", Level.EQUIVALENT: "near", Level.NOT: ""}
    matrix = [
        (f"`{setting}`", *(marks[form.row(setting).level] for form in formats))
        for setting in export_settings()
    ]
    parts = [
        "What a configuration's settings are in other trainers' files, from the tables that write and read them.",
        "*yes*: it is said. *near*: an equivalent, or some of its values. Empty: not expressible. `torchrun`, `slurm` "
        "and `k8s` take the exact configuration. What an export cannot say is in its list of losses.",
        table(("setting", *(form.name for form in formats)), matrix),
    ]
    for form in formats:
        rows = [row for row in form.rows if row.level is not Level.NOT or row.keys]
        parts += [
            f"## {form.name}",
            f"{form.title}; `{form.file}`. Keys of {documents_known(form.name)['package']}. "
            f"Checked: {'; '.join(f'*{level}* {what}' for level, what in form.test_evidence.items())}.",
            table(
                ("setting", "keys", "", "what differs", "instead"),
                (
                    (
                        f"`{row.setting}`",
                        ", ".join(f"`{key}`" for key in row.keys),
                        row.level.value,
                        row.why,
                        row.instead,
                    )
                    for row in rows
                ),
            ),
        ]
    return page("Exports", parts)


def paper(number: str) -> str:
    return f"[{number}](https://arxiv.org/abs/{number})" if number else ""


def commands() -> str:
    """Every command with its arguments and options."""
    parts: list[str] = []
    for path, command in walk(typer.main.get_command(app), "workbench"):
        rows = []
        for parameter in command.get_params(typer.Context(command)):
            if parameter.name in ("help", "install_completion", "show_completion"):
                continue
            spelling = (
                ", ".join(f"`{one}`" for one in (*parameter.opts, *parameter.secondary_opts))
                if parameter.param_type_name == "option"
                else f"`{(parameter.name or '').upper()}`"
            )
            rows.append((spelling, " ".join((getattr(parameter, "help", "") or "").split())))
        about, _, lines = (command.help or "").partition("\f")[0].partition("\b\n")
        parts += [f"## {path}", re.sub(r"\[/?[a-z]+\]", "", sentence(about))]
        if lines:  # a terminal shows them as they are
            parts.append(f"```text\n{lines.strip()}\n```")
        parts += [table(("argument", "meaning"), rows)] if rows else []
    return page("Commands", parts)


def walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command of a group, groups left out."""
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from walk(inner, f"{path} {name}")
    else:
        yield path, command


def documents() -> str:
    """Keys of a run's summary, and the columns of every stream of records."""
    parts = [
        "## A run's summary",
        "`summary.json` of a run folder; `show --json` has these keys beside the run's own.",
    ]
    parts += list(types_of(run_summary.RunSummary))
    parts += ["# Records", "One stream a class; `workbench records RUN --to parquet` writes each as a table."]
    for name, record in schema.STREAMS.items():
        parts += [
            f"## {name}",
            sentence(record.__doc__),
            table(
                ("column", "type"),
                ((f"`{field.name}`", type_name(field.type)) for field in dataclasses.fields(record)),
            ),
        ]
    return page("Documents and records", parts)


def types_of(kind: type, seen: set[type] | None = None) -> Iterator[str]:
    """A table of a class's keys, and those of the classes in it."""
    seen = set() if seen is None else seen
    seen.add(kind)
    hints = typing.get_type_hints(kind, vars(sys.modules[kind.__module__]))
    if kind is not run_summary.RunSummary:
        yield f"### {kind.__name__}"
        yield sentence(kind.__doc__)
    yield table(
        ("key", "type"),
        ((f"`{key}`", type_name(hints[name])) for key, name in keys_of(kind)),
    )
    for hint in hints.values():
        for part in parts_of(hint):
            if inspect.isclass(part) and has_keys(part) and part not in seen:
                yield from types_of(part, seen)


def has_keys(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct)


def keys_of(kind: Any) -> list[tuple[str, str]]:
    """Each key that a document has, and the field behind it."""
    if issubclass(kind, msgspec.Struct):
        return [(field.encode_name, field.name) for field in structs.fields(kind)]
    return [(field.name, field.name) for field in dataclasses.fields(kind)]


def parts_of(hint: Any) -> Iterator[Any]:
    yield hint
    for argument in typing.get_args(hint):
        yield from parts_of(argument)


def type_name(hint: Any) -> str:
    text = (
        hint
        if isinstance(hint, str)
        else getattr(hint, "__name__", "")
        if inspect.isclass(hint) and not typing.get_args(hint)
        else str(hint)
    )
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text).replace("NoneType", "None")


def page(title: str, parts: Iterable[str]) -> str:
    return "\n\n".join([f"# {title}", WRITTEN, *(part for part in parts if part)]) + "\n"


PAGES = {
    "commands.md": commands,
    "configuration.md": configuration,
    "documents.md": documents,
    "environment.md": environment,
    "exports.md": exports,
    "names.md": names,
    "study-file.md": study_file,
}


def picture(kind: str) -> str:
    """A schedule on four ranks, with as many stages a rank as its entry shows it with; or of partial pipelines, as a
    run of theirs is drawn.
    """
    if kind == PARTIAL:
        asked = {"parallel.pp": 4, "model.layers": 12, "schedule.stage_layers": [2, 4, 4, 2],
                 "batch.micro_batch": 1, "batch.global_batch": 8, "schedule.skip_share": 0.25}  # fmt: skip
        series = series_of_run(RunConfig().with_values(asked))
        assert series is not None
        return schedule_svg(series)
    return schedule_svg(schedule_series(kind, 4, SCHEDULES[kind].shown_chunks, 8))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for kind in (*SCHEDULES, PARTIAL):
        (PICTURES / f"{kind}.svg").write_text(picture(kind), "utf-8")
    for file, write in PAGES.items():
        (FOLDER / file).write_text(write(), "utf-8")
