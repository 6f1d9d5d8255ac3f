"""What ``TrainingArguments`` say of FSDP: ``fsdp`` on or off with ``fsdp_config``, or the words of older releases,
which transformers 5.23 takes as well.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.config.errors import InputError
from workbench.export.mapping import documents
from workbench.export.mapping.rows import Document

SWITCH = "fsdp"
CONFIG = "fsdp_config."
VERSION, RESHARD, POLICY = f"{CONFIG}version", f"{CONFIG}reshard_after_forward", f"{CONFIG}auto_wrap_policy"
OFFLOAD, RECOMPUTE = f"{CONFIG}cpu_offload", f"{CONFIG}activation_checkpointing"
_FULL, _GRADIENTS = "full_shard", "shard_grad_op"
#: Strategies of FSDP1, and the ZeRO stage that each is; FSDP2 has the first two, as true and false.
_STAGES = {_FULL: 3, _GRADIENTS: 2, "no_shard": 0, "hybrid_shard": 3, "hybrid_shard_zero2": 2}
#: Values that make a setting, and say more than that.
EXCEEDING: dict[str, tuple[object, ...]] = {VERSION: (1,), RESHARD: ("hybrid_shard", "hybrid_shard_zero2")}
#: By accelerate 1.15.0 (``state.py``), which has no FSDP for ranks on CPUs.
_UNSHARDED = "beside fsdp the Trainer shards nothing, without a word: ranks on CPUs average whole gradients"


def read(text: str) -> Document:
    """A file's document, in which ``fsdp`` is true or false; words that are wrong stay for ``problems`` to tell.

    Raises:
        InputError: it is not JSON, or holds no keys.
    """
    values: Document = {}
    for key, value in documents.read_json(text).items():
        values[key.replace(f"{CONFIG}fsdp_", CONFIG)] = value
    for key in (RESHARD, RECOMPUTE):
        values |= {key: _plain(values[key])} if key in values else {}
    if not values.get(CONFIG.rstrip("."), True):
        del values[CONFIG.rstrip(".")]  # nothing is said in it
    if not values.get(SWITCH, True):
        values[SWITCH] = False
    return values if any(_wrong_words(values)) else _translated(values)


def _plain(value: object) -> object:
    """Words in lower case, but true and false as such."""
    if not isinstance(value, str):
        return value
    return {"true": True, "false": False}.get(value.lower(), value.lower())


def _words(document: Document) -> list[str]:
    switch = document.get(SWITCH)
    return (
        switch.split()
        if isinstance(switch, str)
        else list(map(str, switch))
        if isinstance(switch, list)
        else []
    )


def _is_old(document: Document) -> bool:
    return bool(document.get(VERSION) == 1)


def _translated(document: Document) -> Document:
    """With the keys that the words stand for; what is given beside them decides."""
    current: Document = {}
    for word in _words(document):
        if word == "offload":
            current[OFFLOAD] = True
        elif word != "auto_wrap":
            current.setdefault(RESHARD, word.lower() if _is_old(document) else word == _FULL)
    return {**current, **document, SWITCH: True} if _words(document) else document


def _wrong_words(document: Document) -> Iterator[InputError]:
    switch, old = document.get(SWITCH), _is_old(document)
    for word in _words(document):
        if word in ("offload", "auto_wrap", _FULL, _GRADIENTS) or (old and word.lower() in _STAGES):
            continue
        why = "is of FSDP1 alone" if word in _STAGES else "is no word of it"
        yield InputError(SWITCH, switch, f"{word} {why}; give true, and {RESHARD} true or false")


def problems(document: Document) -> Iterator[InputError]:
    """What the parser of transformers lets through although it is wrong, and words that it refuses."""
    yield from documents.one_of(document, VERSION, 1, 2)
    yield from _wrong_words(document)
    yield from documents.one_of(document, RESHARD, *(_STAGES if _is_old(document) else (True, False)))
    if document.get("use_cpu") and document.get(SWITCH):
        yield InputError("use_cpu", True, f"{_UNSHARDED}; leave fsdp out")


def stage_of(document: Document) -> int:
    """The ZeRO stage; 0 without FSDP."""
    if not document.get(SWITCH):
        return 0
    if _is_old(document):
        return _STAGES[document.get(RESHARD, _FULL)]
    return 3 if document.get(RESHARD, True) else 2
