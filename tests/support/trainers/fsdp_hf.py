"""Reads files of ``TrainingArguments``, a JSON list of texts, on stdin; prints what each says to accelerate of FSDP."""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from transformers import HfArgumentParser, TrainingArguments


def fsdp_of(text: str, file: Path) -> dict[str, Any] | str | None:
    """What its plugin is made with, None without one; words where the file is refused."""
    file.write_text(text, encoding="utf-8")
    try:
        (parsed,) = HfArgumentParser(TrainingArguments).parse_json_file(str(file))
    except ValueError as error:
        return str(error)
    given: dict[str, Any] | None = parsed.fsdp_plugin_args
    return given


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps([fsdp_of(text, Path(folder, "hf.json")) for text in json.load(sys.stdin)]))
