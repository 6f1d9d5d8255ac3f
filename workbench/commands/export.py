"""``export``: the winner as files for another launcher."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from workbench.commands.options import Home, Id, Json


def export(
    identity: Id,
    to: Annotated[str, typer.Option("--to", metavar="TARGET", help="torchrun")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A folder that does not exist yet.")],
    home: Home,
    json: Json = False,
) -> int:
    """Write a run's exact configuration with a script that trains it again; of a study, the one that it recommends."""
    from workbench.export import bundle
    from workbench.export.targets import target
    from workbench.output import emit_json, say
    from workbench.resolve import resolve
    from workbench.runs import load
    from workbench.studies import recommended_run

    render = target(to)
    asked = resolve(home, identity)
    run, which = recommended_run(home, asked)
    if asked.kind == "study":
        say(f"{asked.id} is a study; exporting {which}")
    made = render(home, load(run.folder))
    out = out.expanduser().absolute()
    bundle.write(made, out)
    if json:
        emit_json({"run": run.id, "study": asked.id if asked.kind == "study" else None, "target": to,
                   "out": str(out), "files": sorted(made.files)})  # fmt: skip
    else:
        print(f"{run.id} exported to {out}; train it with {out / 'run.sh'}")
    return 0
