"""Asks a trainer in its own environment: ``python -m tests.support.trainers.ask NAME known '["key", ...]'`` prints what
``known_keys.json`` has of it, and ``... NAME problems`` what it says against each of the files on stdin, a JSON list of
{"text", "ranks"}, "" if nothing. The answer is the last line that is printed.

NAME is a module beside this one: ``known(used)``, of which ``used`` are the keys that rows name, ``problems(files)``,
and whatever else it may be asked. They import the trainer where they need it, so that anybody can ask for
``ENVIRONMENT`` and ``WRONG``, a file that the trainer refuses.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module

if __name__ == "__main__":
    name, what, *arguments = sys.argv[1:]
    trainer = import_module(f"tests.support.trainers.{name}")
    given = json.loads(arguments[0]) if arguments else json.load(sys.stdin)
    print(json.dumps(getattr(trainer, what)(given)))
