"""Reads exports, a JSON list of {"text", "ranks"}, on stdin; prints what transformers says against each, "" if nothing.

What it understood has to be what the file says, key by key.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from pathlib import Path

from transformers import HfArgumentParser, TrainingArguments, training_args


def problem(text: str, folder: Path) -> str:
    """What is wrong with a file."""
    file = folder / "training_args.json"
    file.write_text(text, encoding="utf-8")
    try:
        (parsed,) = HfArgumentParser(TrainingArguments).parse_json_file(str(file))
    except Exception as error:
        return repr(error)
    for key, value in json.loads(text).items():
        found = getattr(parsed, key)
        found = getattr(found, "value", found)
        if isinstance(value, dict) and not isinstance(found, dict):
            found = {name: getattr(found, name) for name in value}
        if isinstance(value, dict):
            found = {name: found[name] for name in value}
        if key == "report_to":
            found = "none" if found == [] else found
        if found != value:
            return f"{key}: {found!r} is not {value!r}"
    return ""


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    training_args.is_torch_bf16_gpu_available = lambda: True  # a GPU that has bf16 is stood in for
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps([problem(one["text"], Path(folder)) for one in json.load(sys.stdin)]))
