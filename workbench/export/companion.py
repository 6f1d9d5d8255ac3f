"""The DeepSpeed file that another trainer's file names, or has within it: what it says holds for that trainer, too.

Hugging Face's Trainer and accelerate fill in ``"auto"`` from what they are given themselves, and refuse a file that
says otherwise than they do.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config.errors import InputError
from engine.config.run_config import RunConfig
from workbench.export.formats.deepspeed import DEEPSPEED
from workbench.export.mapping import documents
from workbench.export.mapping.rows import Document, Format

_AUTO = "auto"
#: What both files say, whatever the number of ranks is.
_SHARED = ("batch.micro_batch", "precision", "train.learning_rate", "train.clip_norm", "train.weight_decay",
           "train.beta1", "train.beta2", "train.epsilon")  # fmt: skip
#: Of the file that names it, wherever that says it.
_ITS_OWN = ("batch.global_batch", "parallel.dp")


@dataclass(frozen=True, slots=True)
class Companion:
    """``name`` is how the file calls it, ``document`` what it says by itself, without what is ``"auto"``."""

    name: str
    document: Document

    def apply(self, values: dict[str, Any], ranks: int) -> dict[str, Any]:
        """The settings of the file that names it, with those of this one.

        Raises:
            InputError: something in it is wrong, or is not what the other file says.
        """
        usual = documents.usual(DEEPSPEED.name)
        silent = DEEPSPEED.settings(usual, ranks)
        said = {
            setting: value
            for setting, value in DEEPSPEED.settings(usual | self.document, ranks).items()
            if value != silent.get(setting) or setting == "parallel.zero_stage"
        }
        for setting in _SHARED:
            if setting in said and values.get(setting, said[setting]) != said[setting]:
                remedy = f"is {values[setting]} in the file that names it; write auto in one of them"
                raise InputError(f"{self.name}: {setting}", said[setting], remedy)
        return values | {
            setting: value
            for setting, value in said.items()
            if setting not in _ITS_OWN or setting not in values
        }

    def unread(self, ranks: int, config: RunConfig) -> Document:
        """What of it is lost in the configuration, by the name of the file and the key."""
        lost = DEEPSPEED.unread(self.document, documents.usual(DEEPSPEED.name), ranks, config)
        return {f"{self.name}: {key}": value for key, value in lost.items()}


def split(form: Format, document: Document, folder: Path | None) -> tuple[Document, Companion | None]:
    """A document without what names a DeepSpeed file, and that file; a relative name is of the ``folder``, or of the
    working directory. None: it names none.

    Raises:
        InputError: it cannot be read.
    """
    key = form.deepspeed_key
    named = document.get(key) if key else None
    inner = {name: value for name, value in document.items() if key and name.startswith(f"{key}.")}
    if key is None or (not named and not inner):
        return document, None
    remainder = {name: value for name, value in document.items() if name != key and name not in inner}
    if named:
        found = documents.read_json(_text(key, str(named), folder))
    else:
        found = {name.removeprefix(f"{key}."): value for name, value in inner.items()}
    return remainder, Companion(
        str(named or key), {name: value for name, value in found.items() if value != _AUTO}
    )


def _text(key: str, name: str, folder: Path | None) -> str:
    if folder is None:
        remedy = "is another file, and only this one was sent; put what it holds in place of its name"
        raise InputError(key, name, remedy)
    places = [place for place in (folder / name, Path(name)) if place.exists()]
    if not places:
        raise InputError(key, name, "is not there; put it beside the file that names it")
    return documents.text_of(places[0], key, name)
