"""Megatron-LM's arguments as text: a file of them, a command, or a script that lists them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

from engine.config.errors import InputError
from workbench.export.mapping import documents
from workbench.export.mapping.rows import Document

#: Of a launcher before the script: how many ranks there are.
_EACH, _HOSTS = ("--nproc-per-node", "--nproc_per_node"), ("--nnodes",)
RANKS = "ranks"
FSDP, ZERO1 = "--use-megatron-fsdp", "--use-distributed-optimizer"


def text(document: Document) -> str:
    """One argument a line, as run.sh reads them."""
    lines = []
    for key, value in document.items():
        values = value if isinstance(value, list) else [] if value is True else [value]
        lines.append(" ".join([key, *(shlex.quote(str(value)) for value in values)]))
    return "\n".join(lines) + "\n"


def read(source: str) -> Document:
    """The arguments of a file, of a command, or of a script that lists them; nothing in it runs.

    Raises:
        InputError: it cannot be split into words, has no arguments, or a value is not one.
    """
    try:
        words = shlex.split(source.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise InputError("file", None, f"cannot be split into arguments ({error})") from None
    kinds, document, place = documents.read_format("megatron")["keys"], Document(), 0
    while place < len(words):
        key, equals, remainder = words[place].partition("=")
        place += 1
        if not key.startswith("--"):
            continue
        values = [remainder] if equals else []
        kind = kinds.get(key, "str")
        while not equals and kind != "flag" and place < len(words) and _is_value(words[place]):
            values.append(words[place])
            place += 1
            if kind != "many":
                break
        document[key] = True if not values else [_value(key, value, kind) for value in values]
        if isinstance(document[key], list) and kind != "many":
            document[key] = document[key][0]
    if not document:
        raise InputError("file", None, "has no arguments; give those of Megatron-LM, such as --num-layers 24")
    return _with_ranks(document)


def _is_value(word: str) -> bool:
    return word != ")" and not (word.startswith("-") and not re.fullmatch(r"-[\d.][\d.eE+-]*", word))


def _value(key: str, word: str, kind: Any) -> Any:
    word = word.removesuffix(")")
    if "$" in word:
        raise InputError(key, word, "is a variable of the shell; give its value")
    if kind == "many":
        return _number(word)
    try:
        return {"int": int, "float": float}[kind](word) if kind in ("int", "float") else word
    except (ValueError, TypeError):
        return word


def _number(word: str) -> Any:
    try:
        return float(word)
    except ValueError:
        return word


def _with_ranks(document: Document) -> Document:
    counts = []
    for names in (_EACH, _HOSTS):
        counts_of_names = [document.pop(name) for name in names if name in document]
        counts += [int(count) for count in counts_of_names if str(count).isdigit()]
    for name in ("--standalone", "--node-rank", "--node_rank", "--master-addr", "--master_addr", "--master-port",
                 "--master_port", "--rdzv-backend", "--rdzv-endpoint", "--rdzv_backend", "--rdzv_endpoint",
                 "--rdzv-id", "--rdzv_id", "--tee", "--log-dir"):  # fmt: skip
        document.pop(name, None)
    total = 1
    for count in counts:
        total *= count
    return document | ({RANKS: total} if counts else {})


def missing_parts(document: Document) -> Iterator[InputError]:
    """Arguments that ask for another one that is not there."""
    gather, experts, size = (
        document.get(key)
        for key in ("--overlap-param-gather", "--num-experts", "--expert-model-parallel-size")
    )
    if gather and not (
        document.get(ZERO1) or document.get(FSDP) or document.get("--optimizer") == "dist_muon"
    ):
        yield InputError("--overlap-param-gather", True, f"needs {ZERO1}; give it, or leave this out")
    if gather and not document.get("--overlap-grad-reduce"):
        yield InputError("--overlap-param-gather", True, "needs --overlap-grad-reduce; give it, too")
    if size and size > 1 and not experts:
        yield InputError("--expert-model-parallel-size", size, "needs --num-experts; give it, too")
    elif size and experts:
        yield from documents.divides(document, "--expert-model-parallel-size", experts, "--num-experts")
