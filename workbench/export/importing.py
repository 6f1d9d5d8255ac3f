"""A public trainer's file as a configuration of this project, to train or to begin a study with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config.errors import InputError, several
from engine.config.run_config import RunConfig
from engine.config.validation import rules
from workbench.export import companion, targets
from workbench.export.mapping import documents
from workbench.export.mapping.rows import USUAL, Document, Format

_BY_SUFFIX = {".json": documents.read_json, ".yaml": documents.read_yaml, ".yml": documents.read_yaml}


@dataclass(frozen=True, slots=True)
class ImportResult:
    """What a file says here: ``values`` are the settings that it names, ``left_out`` its keys that are none here."""

    format: str
    package: str
    ranks: int
    config: RunConfig
    values: dict[str, Any]
    left_out: Document

    def document(self) -> dict[str, Any]:
        """Plain values, for ``--json``."""
        return {"from": self.format, "checked_against": self.package, "ranks": self.ranks,
                "config": self.values, "left_out": self.left_out}  # fmt: skip


def read(path: Path, name: str | None = None, ranks: int | None = None,
         sets: Mapping[str, Any] | None = None) -> ImportResult:  # fmt: skip
    """The configuration of a file, with what is set beside it.

    Raises:
        InputError: the file cannot be read, is of no trainer that is known, or has something wrong in it.
    """
    text = documents.text_of(path, "file", str(path))
    form = _find_format(name) if name else _detect_format(path, text)
    return read_text(form, text, ranks, sets or {}, path.parent)


def read_upload(name: str, data: bytes, form: str | None = None, ranks: int | None = None) -> ImportResult:
    """As ``read``, of a file that somebody sent with its name.

    Raises:
        InputError: as ``read``.
    """
    if len(data) > documents.MOST_MIB * 2**20:
        raise InputError(
            "file", name, f"is larger than {documents.MOST_MIB} MiB; give a trainer's configuration file"
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError("file", name, "is not a text file; give a trainer's configuration file") from None
    return read_text(_find_format(form) if form else _detect_format(Path(name), text), text, ranks, {})


def format_names() -> list[str]:
    """Of all trainers whose files can be read."""
    return [form.name for form in _formats()]


def read_text(
    form: Format, text: str, ranks: int | None, sets: Mapping[str, Any], folder: Path | None = None
) -> ImportResult:
    """As ``read``, of a file's text; another file that it names is looked for in the ``folder``."""
    parsed, deepspeed = companion.split(form, form.document(text), folder)
    usual = documents.usual(form.name)
    document = usual | parsed
    ranks_of_file = form.ranks(document)
    count = ranks or ranks_of_file or 1
    own = form.settings(document, count)
    if deepspeed is not None and not ranks and not ranks_of_file and (found := deepspeed.ranks()):
        count = found
        own = form.settings(document, count)
    values = deepspeed.apply(own, count) if deepspeed is not None else own
    if ranks and ranks_of_file and ranks != ranks_of_file:
        raise InputError("--ranks", ranks, f"the file is for {several(ranks_of_file, 'ranks')}; leave it out")
    values = {
        key: value for key, value in values.items() if value is not None or USUAL[key] is not None
    } | dict(sets)
    config = RunConfig().with_values(_with_batch(values))
    try:
        rules.check(config)
    except InputError as problem:
        remedy = (
            f"{problem.remedy} (from {form.file}; set another value beside it, as in --set model.preset=1b)"
        )
        raise InputError(problem.field, problem.value, remedy) from None
    package = documents.read_format(form.name)["package"]
    left_out = form.unread(parsed, usual, count, config)
    left_out |= deepspeed.unread(own, count, config) if deepspeed is not None else {}
    return ImportResult(form.name, package, count, config, _with_batch(values), left_out)


def _with_batch(values: dict[str, Any]) -> dict[str, Any]:
    """With sequences of a step that its ranks can share, where a file does not say how many: about as usual."""
    if "batch.global_batch" in values:
        return values
    samples_per_pass = values.get("parallel.dp", 1) * values.get(
        "batch.micro_batch", USUAL["batch.micro_batch"]
    )
    return values | {
        "batch.global_batch": samples_per_pass * max(1, round(USUAL["batch.global_batch"] / samples_per_pass))
    }


def tree(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as the sections of a configuration file."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *sections, last = key.split(".")
        nested_section = nested
        for section in sections:
            nested_section = nested_section.setdefault(section, {})
        nested_section[last] = value
    return nested


def write(text: str, out: Path) -> None:
    """A configuration file that was not there before.

    Raises:
        InputError: it is there, or cannot be written.
    """
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError("--out", str(out), "exists; choose another") from None
    except OSError as error:
        remedy = f"cannot be written ({os.strerror(error.errno or 0)}); choose another"
        raise InputError("--out", str(out), remedy) from None


def _formats() -> list[Format]:
    return [target.format for target in targets.TARGETS if target.format is not None]


def _find_format(name: str) -> Format:
    for form in _formats():
        if form.name == name:
            return form
    names = ", ".join(form.name for form in _formats())
    raise InputError("--from", name, f"unknown; available: {names}")


def _detect_format(path: Path, text: str) -> Format:
    """The format most of whose keys the file has, where its first keys leave no doubt."""
    suffix = path.suffix.lower()
    if (reads := _BY_SUFFIX.get(suffix)) is not None:
        reads(text)  # what is wrong with it as such is said first
    if own_formats := [form for form in _formats() if suffix in form.own_suffixes]:
        return own_formats[0]
    best: list[tuple[float, Format]] = []
    for form in _formats():
        try:
            document, keys = form.document(text), documents.read_format(form.name)["keys"]
        except InputError:
            continue
        heads = {key.split(".")[0] for key in document}
        sections = {key.split(".")[0] for key in keys}
        if heads:
            best.append((len(heads & sections) / len(heads), form))
    best.sort(key=lambda scored: scored[0], reverse=True)
    if best and best[0][0] > 0.5 and (len(best) == 1 or best[0][0] > best[1][0]):
        return best[0][1]
    names = ", ".join(form.name for form in _formats())
    raise InputError(
        "file", str(path), f"is not the file of one trainer for sure; give --from, one of {names}"
    )
