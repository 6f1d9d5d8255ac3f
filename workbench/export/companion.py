"""The DeepSpeed file that another trainer's file names, or has within it: what it says holds for that trainer, too.

Hugging Face's Trainer and accelerate fill in ``"auto"`` from what they are given themselves; the Trainer refuses a file
that says otherwise than its arguments. What neither says is DeepSpeed's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config.errors import InputError
from engine.config.run_config import RunConfig
from workbench.export.formats.deepspeed import DEEPSPEED
from workbench.export.mapping import documents
from workbench.export.mapping.rows import DeepspeedFile, Document, Format

_AUTO = "auto"
_MICRO, _ACCUMULATION = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
_ZERO = "zero_optimization"
#: What accelerate, which the Trainer starts as well, puts in place of "auto" whatever it was given itself.
_ACCELERATES: Document = {f"{_ZERO}.stage": 2, f"{_ZERO}.offload_optimizer.device": "none",
                          f"{_ZERO}.offload_param.device": "none", "scheduler.params.warmup_min_lr": 0,
                          "gradient_clipping": 1.0}  # fmt: skip
_OF_BATCH = ("batch.micro_batch", "batch.global_batch")


@dataclass(frozen=True, slots=True)
class Companion:
    """``name`` is how the file calls it, ``document`` what it says, ``"auto"`` included. ``naming`` is what the file
    that names it says besides, and ``form`` that file's trainer.
    """

    name: str
    document: Document
    naming: Document
    form: Format

    def ranks(self) -> int | None:
        """Where it says how many sequences a step has, and the other file how many a rank has, they say it."""
        whole = self.document.get("train_batch_size")
        return DEEPSPEED.ranks(self._says(1) | {"train_batch_size": whole})

    def apply(self, values: dict[str, Any], ranks: int) -> dict[str, Any]:
        """The settings of the file that names it, with those of this one.

        Raises:
            InputError: something in it is wrong, or is not what the other file says.
        """
        self._check(ranks)
        said = DEEPSPEED.settings(documents.usual(DEEPSPEED.name) | self._filled(ranks), ranks)
        if not self._named.batch:
            return values | said
        accumulation = values["batch.global_batch"] // (values["batch.micro_batch"] * ranks)
        whole = values["batch.micro_batch"] * accumulation * said["parallel.dp"]
        own = {"batch.micro_batch": values["batch.micro_batch"], "batch.global_batch": whole}
        return values | {key: value for key, value in said.items() if key not in _OF_BATCH} | own

    def unread(self, values: dict[str, Any], ranks: int, config: RunConfig) -> Document:
        """What of it is lost in the configuration, by the name of the file and the key; and what the file that names
        it, which alone would make the ``values``, says in vain.
        """
        filled = self._filled(ranks)
        lost = DEEPSPEED.unread(filled, documents.usual(DEEPSPEED.name), ranks, config)
        lost |= {key: value for key, value in self.document.items() if value == _AUTO and key not in filled}
        replaced = {
            key for key, value in self.apply(values, ranks).items() if values.get(key, value) != value
        }
        keys = {key for setting in replaced for key in self.form.row(setting).keys}
        in_vain = {key: value for key, value in self.naming.items() if key in keys}
        return in_vain | {f"{self.name}: {key}": lost[key] for key in self.document if key in lost}

    @property
    def _named(self) -> DeepspeedFile:
        assert self.form.deepspeed is not None
        return self.form.deepspeed

    def _says(self, ranks: int) -> Document:
        return self._named.says(documents.usual(self.form.name) | self.naming, ranks)

    def _filled(self, ranks: int) -> Document:
        """With what stands for "auto" where that is known, and without the other keys that are; mixed precision that is
        asked for is put in.
        """
        known = _ACCELERATES | self._says(ranks)
        filled = {key: known.get(key) if value == _AUTO else value for key, value in self.document.items()}
        for half in ("bf16.enabled", "fp16.enabled"):
            if known.get(half) and not any(key.startswith(half.split(".")[0]) for key in filled):
                filled[half] = True
        return {_ACCUMULATION: 1} | {key: value for key, value in filled.items() if value is not None}

    def _check(self, ranks: int) -> None:
        for problem in self._named.problems(self.naming):
            raise problem
        if not any(key.split(".")[0] == _ZERO for key in self.document):
            raise InputError(
                f"{self.name}: {_ZERO}", None, "is missing, and accelerate refuses that; give its stage"
            )
        whole = self.document.get("train_batch_size")
        if self.document.get(_MICRO) is None and (
            whole is None or (whole == _AUTO and not self._named.batch)
        ):
            remedy = "is missing, and without train_batch_size DeepSpeed refuses that; write auto"
            raise InputError(f"{self.name}: {_MICRO}", None, remedy)
        for key, wanted in self._says(ranks).items() if self._named.insists else ():
            value = self.document.get(key)
            if value not in (None, _AUTO, wanted):
                remedy = f"is {wanted} by the file that names it, and the trainer refuses that; write auto"
                raise InputError(f"{self.name}: {key}", value, remedy)


def split(form: Format, document: Document, folder: Path | None) -> tuple[Document, Companion | None]:
    """A document without what names a DeepSpeed file, and that file; a relative name is of the ``folder``, or of the
    working directory. None: it names none.

    Raises:
        InputError: it cannot be read.
    """
    key = form.deepspeed.key if form.deepspeed else None
    named = document.get(key) if key else None
    inner = {name: value for name, value in document.items() if key and name.startswith(f"{key}.")}
    if key is None or (not named and not inner):
        return document, None
    remainder = {name: value for name, value in document.items() if name != key and name not in inner}
    is_within = not named or str(named).lstrip().startswith("{")
    if not named:
        within = {name.removeprefix(f"{key}."): value for name, value in inner.items()}
        found = DEEPSPEED.document(documents.json_text(within))
    else:
        found = DEEPSPEED.document(str(named) if is_within else _text(key, str(named), folder))
    return remainder, Companion(key if is_within else str(named), found, remainder, form)


def _text(key: str, name: str, folder: Path | None) -> str:
    if folder is None:
        remedy = "is another file, and only this one was sent; put what it holds in place of its name"
        raise InputError(key, name, remedy)
    places = [place for place in (folder / name, Path(name)) if place.exists()]
    if not places:
        raise InputError(key, name, "is not there; put it beside the file that names it")
    return documents.text_of(places[0], key, name)
