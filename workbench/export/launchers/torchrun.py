"""Export for torchrun: the exact configuration, a script that trains it again, and where it comes from.

``note`` says who has to see to it that each rank is on its device; the exports for other trainers take it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.checkpoint.checkpoint_folder import CHECKPOINTS
from engine.checkpoint.resume import locate
from engine.config import environment
from engine.config.errors import InputError, several
from engine.config.layout import layout_of
from engine.config.presets import DECODER, SHIPPED, reads_text
from engine.config.run_config import RunConfig
from engine.config.sections import Data, Model
from tuning.spec.objectives import text
from workbench.analysis.studies import StudyDocument
from workbench.export.bundle import Bundle
from workbench.export.launchers.external_trainer import target_of
from workbench.export.mapping.rows import UnexpressedSetting
from workbench.export.provenance import ParentRun, Source, backbone_of, provenance, resume_origin, source
from workbench.home.runs import RunView
from workbench.text.output import dumps

#: A trainer that starts ranks as its launcher numbers them.
_BY_LAUNCHER = (
    "rank r belongs on device placement[r] of {order}, devices counted host by host: no key of this trainer says so, "
    "so name hosts and devices in that order in the launcher's host file or rank file"
)
_BY_ENGINE = (
    "rank r works on device placement[r] of {order}, devices counted host by host from NODE_RANK 0 on; the trainer "
    "numbers its ranks so by itself. Another trainer needs that order in its launcher's host file or rank file"
)


def note(config: RunConfig, own_trainer: bool = False) -> str | None:
    """One line for an export's notes; None where ranks are in order. ``own_trainer`` is the engine's."""
    order = config.parallel.placement
    if order is None or order == sorted(order):
        return None
    return (_BY_ENGINE if own_trainer else _BY_LAUNCHER).format(order=order)


_SCRIPT = """\
#!/usr/bin/env bash
# Trains config.json again on {on_ranks}: {layout}.
#   ./run.sh [--out FOLDER]      where the run folder goes; default ./runs beside this script
# On several machines, start it on each with the same values but for NODE_RANK:
#   NNODES=2 NODE_RANK=0 MASTER_ADDR=first.machine MASTER_PORT=29500 ./run.sh
# PYTHON names an interpreter that has the package {package}; default: {python}, else python3.
set -euo pipefail
cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")"

RANKS={ranks}
NNODES="${{NNODES:-1}}"
if [[ ! "$NNODES" =~ ^[1-9][0-9]*$ ]] || (( RANKS % NNODES )); then
  echo "error: NNODES=$NNODES: must divide the $RANKS ranks of this layout" >&2
  exit 2
fi
{exports}

if [[ -z "${{PYTHON:-}}" ]]; then
  PYTHON={python_quoted}
  [[ -x "$PYTHON" ]] || PYTHON=python3
fi
if (( NNODES == 1 )); then
  where=(--standalone)
else
  where=(--nnodes "$NNODES" --node-rank "${{NODE_RANK:?give NODE_RANK, 0 on the first machine}}"
         --master-addr "${{MASTER_ADDR:?give MASTER_ADDR, the first machine}}"
         --master-port "${{MASTER_PORT:-29500}}")
fi
exec "$PYTHON" -m torch.distributed.run "${{where[@]}}" --nproc-per-node "$((RANKS / NNODES))" \\
  -m engine.launch.torchrun config.json "$@"
"""

_README = """\
# {name}

The configuration that run `{run}` trained{of_study}, ready for `torchrun`.

| file | what it is |
|---|---|
| `config.json` | the exact configuration: model, data, layout, batch, schedule, compression, precision |
| `run.sh` | trains it again: `./run.sh`; several machines: see its first lines |
| `provenance.json` | run, study, measured numbers with their intervals, machine, versions, checksum |

- Layout: {layout} on {on_ranks}{placed}
- This run measured: {measured}{chosen_for}
{model}- {data}
- Starts: {starts}

It needs Python with the package `{package}` (and torch) installed. Speed depends on the machine: measure again
where it is to run for long.
"""


def render(view: RunView, study: StudyDocument | None = None, target: str = "torchrun") -> Bundle:
    """The files of a run's export, with what its study says; nothing is written. The ``target`` is what was asked for.

    Raises:
        InputError: the run has no valid configuration, or is of a trainer that is not this project's.
    """
    run_source = source(view, study)
    if run_source.view.config().trainer:
        remedy = f"trains this project's models, and the run is of another trainer; give {target_of(view)}"
        raise InputError("--to", target, remedy)
    words = _words(run_source)
    files = {
        "config.json": run_source.config_text,
        "run.sh": _SCRIPT.format(**words),
        "provenance.json": dumps(provenance(run_source).as_dict()) + "\n",
        "README.md": _README.format(**words),
    }
    return Bundle(words["name"], files, frozenset({"run.sh"}), tuple(_missing_backbone(view)))


@dataclass(frozen=True, slots=True)
class Launcher:
    """Another way of starting this project's trainer: ``file`` stands in the export in place of ``run.sh``.

    ``text`` makes it from the export under torchrun and the configuration. ``label`` is what the README says of it, in
    Markdown. Without ``executable`` another program reads it. ``parsed_by`` is the package, with its version, whose
    code read exports of random configurations.
    """

    file: str
    text: Callable[[Bundle, RunConfig], str]
    label: str
    executable: bool = False
    parsed_by: str | None = None


def render_launcher(
    target: str, launcher: Launcher, view: RunView, study: StudyDocument | None = None
) -> Bundle:
    """The files of a run's export for the ``target`` with a launcher of its own; nothing is written.

    Raises:
        InputError: as :func:`render`.
    """
    bundle = render(view, study, target)
    readme = bundle.files["README.md"]
    line = next(line for line in readme.splitlines() if line.startswith("| `run.sh`"))
    readme = readme.replace(line, f"| `{launcher.file}` | {launcher.label} |")
    files = {
        "config.json": bundle.files["config.json"],
        launcher.file: launcher.text(bundle, view.config()),
        **{name: text for name, text in bundle.files.items() if name != "run.sh"},
        "README.md": readme.replace("ready for `torchrun`", f"ready as `{launcher.file}`"),
    }
    executable = frozenset({launcher.file} if launcher.executable else ())
    return Bundle(bundle.name, files, executable, bundle.unexpressed)


def _words(run_source: Source) -> dict[str, Any]:
    import shlex
    import sys

    view, config = run_source.view, run_source.view.config()
    layout = layout_of(config)
    study = view.labels.get("study")
    return {
        "name": f"{study or 'run'}-{view.id}",
        "run": view.id,
        "of_study": f" (study `{study}`, trial {view.labels.get('trial')})" if study else "",
        "ranks": layout.world_size,
        "on_ranks": several(layout.world_size, "ranks"),
        "layout": f"dp={layout.dp} tp={layout.tp} pp={layout.pp} zero_stage={layout.zero_stage}",
        "placed": f"\n- Placement: {placement}" if (placement := note(config, own_trainer=True)) else "",
        "measured": throughput_text(view),
        "chosen_for": _chosen_for(run_source),
        "model": _workload(config.model),
        "data": _data(config),
        "starts": _starts(view),
        "package": _package(config.model.workload),
        "exports": exports_of(config),
        "python": sys.executable,
        "python_quoted": shlex.quote(sys.executable),
    }


def exports_of(config: RunConfig) -> str:
    """The run's variables as it had them; what else the shell has stays."""
    import shlex

    variables = environment.variables(config.environment)
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    aliases = [alias for name in variables for alias in environment.ALIASES.get(name, ())]
    lines += [f"unset {' '.join(aliases)}"] if aliases else []
    if "OMP_NUM_THREADS" not in variables:
        lines.insert(0, 'export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"')
    return "\n".join(lines)


def _package(workload: str) -> str:
    extra = SHIPPED[workload].extra if workload in SHIPPED else ""
    return "training-workbench" + (f"[{extra}]" if extra else "")


def _workload(model: Model) -> str:
    """A line about one that is not the decoder; a person's own is no part of an export."""
    if model.workload == DECODER:
        return ""
    if model.workload in SHIPPED:
        return f"- Model: the workload `{model.workload}`, which comes with the package\n"
    module = model.workload.rpartition(":")[0]
    return (
        f"- Model: `{model.workload}`; `{module}` is not in this folder: put it where this name finds it, or change "
        "`model.workload` in `config.json`\n"
    )


def _data(config: RunConfig) -> str:
    if not reads_text(config.model.workload):
        return "Data: the workload's own"
    return f"Text: {_texts(config.data)}"


def _texts(data: Data) -> str:
    usual = "the text that comes with Python; nothing to download"
    if not data.tasks:
        return data.path or usual
    return "; ".join(f"{task.name}: {task.path or usual}" for task in data.tasks)


def _chosen_for(run_source: Source) -> str:
    """The objective of the study, and the run's value."""
    study = run_source.study.result if run_source.study else None
    row = study and next((row for row in study.trials if row.run == run_source.view.id), None)
    if not study or not row or not study.objective:
        return ""
    aim = study.aim
    value = f": {aim.words(row.value)}" if row.value is not None else ""
    entries = (entry for entry in (study.best, study.baseline, study.recommended) if entry)
    confirmed = next((entry for entry in entries if entry.trial == row.number), None)
    if confirmed is not None and confirmed.value != row.value:
        low, high = aim.bounds(confirmed.low, confirmed.high)
        interval = (
            f" (95 % of runs: {text(low)} to {text(high)})" if low is not None and high is not None else ""
        )
        value = (
            f": {aim.words(confirmed.value)}{interval}, measured again; {aim.words(row.value)} in the search"
        )
    others = [name for name in study.objectives if name != aim.name]
    rivals_text = f", beside {' and '.join(others)}" if others else ""
    return f"\n- Objective of its study: `{aim.name}`{value}{rivals_text}"


def _starts(view: RunView) -> str:
    origin, backbone = resume_origin(view), backbone_of(view)
    if backbone is not None:
        return _beside(view, backbone, origin)
    if origin is None:
        return f"from the beginning{_losses_again(view.config())}"
    return (
        f"from the beginning, though the run continued {_words_of(origin)}; to continue a checkpoint, set "
        "`train.resume` in `config.json` to its folder"
    )


def _losses_again(config: RunConfig) -> str:
    """Whether another run has the losses of this one."""
    if config.train.seconds is not None:
        return (
            f"; how many steps fit into its {config.train.seconds:g} s differs from run to run, and with that the "
            "learning rates and the losses"
        )
    same = ", with the losses of the run where the number of ranks is the same"
    if config.parallel.sequence_groups == "planned":
        return (
            f"{same}, but for their last digits: groups of ranks are planned by times that each run measures"
        )
    return same


def _beside(view: RunView, backbone: Path, origin: ParentRun | None) -> str:
    words = (
        f"beside the frozen checkpoint of {_words_of(_saved_in(backbone))}, which every machine needs; "
        "`train.resume` in `config.json` says where it lies"
    )
    if origin is not None and origin.run != _saved_in(backbone).run:
        words += (
            f". What learns beside it starts from the beginning, though the run continued {_words_of(origin)}; "
            "to continue a checkpoint, set `train.resume` to its folder"
        )
    return words + "".join(f". **{setting.why}**: {setting.instead}" for setting in _missing_backbone(view))


def _missing_backbone(view: RunView) -> Iterator[UnexpressedSetting]:
    """Where a run learned beside a checkpoint that is not where it was."""
    backbone = backbone_of(view)
    if backbone is None:
        return
    try:
        locate(backbone)
    except InputError:
        why, remedy = "the frozen checkpoint is not there now", "put it back, or say where it lies"
        yield UnexpressedSetting("train.resume", str(backbone), why, remedy)


def _saved_in(checkpoint: Path) -> ParentRun:
    """The run that saved it, and its step."""
    try:
        point = locate(checkpoint)
    except InputError:
        run = checkpoint.parent.parent if checkpoint.parent.name == CHECKPOINTS else checkpoint
        return ParentRun(run.name, None)
    return ParentRun(point.run, point.manifest.step)


def _words_of(saved: ParentRun) -> str:
    return f"`{saved.run}`" + ("" if saved.step is None else f" after {several(saved.step, 'steps')}")


def throughput_text(view: RunView) -> str:
    summary = view.summary
    if summary is None or summary.tokens_per_second is None:
        return "nothing; this run has no measured step"
    bounds = summary.tokens_per_second_interval
    interval = f" (95 %: {bounds.low:,.0f} to {bounds.high:,.0f})" if bounds else ""
    backend = view.status.backend
    steps = several(summary.measured_steps, "steps")
    return f"{summary.tokens_per_second:,.0f} tokens/s{interval} over {steps} on {backend}"
