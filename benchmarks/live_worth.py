"""Is it worth it to tune a run while it goes? A whole run, search included, beside others of as many steps.

    python -m benchmarks.live_worth [--steps 1000] [--seeds 3] [--minutes 9] [--save]

Four ranks on two islands of the lab with 100 Mbit/s between them, plain data parallel to begin with. Arms: the run that
nobody touched; tuned as it goes; with what that ended with from its first step on; tuned offline by short trials of
their own, then run; and tuned as it goes by random windows. All of a seed in turns. With ``--save`` each ended one is
kept in ``results/live_worth.json``, so the benchmark goes on where it was stopped. Seconds are those of a stop-watch
from the second step to the last, those of an offline search added. Held-out losses are those after the last step,
beside the untouched run's. Needs what ``workbench lab`` needs.
"""

from __future__ import annotations

import json
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import _table as table
from benchmarks._stop_watch import HomeWatch
from engine.config.run_config import RunConfig, load
from engine.run import run_folder
from engine.session import Session
from tuning.execution.live.exploitation import run_to_the_end, windows_of
from tuning.execution.live.ongoing_run import runs_of
from tuning.spec.study_file import StudyFile, parse
from tuning.storage.study_folder import STUDIES
from tuning.study import run_study
from workbench.analysis import live_report, studies
from workbench.home import runs

KEPT = table.RESULTS / "live_worth.json"
Row = dict[str, Any]
#: The share of held-out loss that a lossy setting may cost.
GUARD = 0.05


def study(steps: int, seed: int, **changes: Any) -> StudyFile:
    """What can be turned between two steps and matters on a slow link."""
    tree: dict[str, Any] = {
        "name": "worth",
        "ranks": 4,
        "trials": 7,
        "seed": seed,
        "confirm_runners_up": 1,
        "quality": {"max_loss_increase": GUARD},
        "live": {"steps": steps, "checkpoint_every": steps, "look_again": None},
        "base": {
            "model": {"preset": "tiny"},
            "data": {"sequence_length": 128},
            "batch": {"global_batch": 12, "micro_batch": 3},
            "train": {
                "steps": 6,
                "warmup": 1,
                "validation_batches": 8,
                "seed": seed,
                "timeout_seconds": 7200,
            },
            "lab": {"hosts": 4, "islands": 2, "rate_mbit": 1000.0, "between_mbit": 100.0},
        },
        "space": {
            "compression.method": ["none", "int8", "int4", "powersgd", "topk"],
            "compression.rank": [2, 4, 8, 16],
            "overlap.bucket_mb": [1.0, 5.0, 25.0],
        },
    }
    return parse(tree | changes)


def baseline(file: StudyFile) -> RunConfig:
    """Plain data parallelism."""
    return file.search_space.config(file.search_space.baseline[0])


def alone(home: Path, config: RunConfig, steps: int) -> str:
    """A run that nobody turns; its name."""
    begun: list[Path] = []
    with Session(home) as session:
        session.execute(config.with_values({"train.steps": steps}), {}, lambda: False, begun.append)
    return begun[0].name


def tuned(home: Path, file: StudyFile) -> str:
    """Searched and trained to its end; its name."""
    folder, windows = home / STUDIES / file.name, windows_of(home, file)
    run_to_the_end(
        windows, file, lambda: run_study(file, folder, windows), lambda: nullcontext(lambda: False)
    )
    show_windows(folder)
    return runs_of(folder)[-1]


def show_windows(folder: Path) -> None:
    """Which windows there were, and what each learned."""
    report = live_report.report_live_study(folder, studies.document(folder).result)
    for row in report.windows if report is not None else ():
        learned = "" if row.learned is None else f", learned {row.learned:.2f}"
        check = " (check)" if row.checks_loss else ""
        print(
            f"{row.first}-{row.end} trial {row.trial}{check} {row.outcome}: {row.label}{learned}", flush=True
        )


def offline(home: Path, file: StudyFile, steps: int) -> tuple[str, float]:
    """A search by runs of their own, and the run with what it found; the seconds that the search took."""
    ordinary = parse({key: value for key, value in file._dump_given().items() if key != "live"})
    began = time.monotonic()
    with Session(home) as session:
        result = run_study(ordinary, home / STUDIES / file.name, session.execute)
    took = time.monotonic() - began
    best = ordinary.search_space.config(result.best.config) if result.best else baseline(ordinary)
    return alone(home, best, steps), took


def measure(arm: str, steps: int, seed: int, known: dict[str, Row]) -> Row:
    """One arm of a seed."""
    file = study(steps, seed)
    with tempfile.TemporaryDirectory() as name, HomeWatch(Path(name)) as watched:
        home, searched = Path(name), 0.0
        if arm == "untouched":
            run = alone(home, baseline(file), steps)
        elif arm == "tuned as it goes":
            run = tuned(home, file)
        elif arm == "its end from the start":
            run = alone(home, RunConfig.model_validate(known["tuned as it goes"]["config"]), steps)
        elif arm == "random windows":
            run = tuned(home, study(steps, seed, sampler="random", confirm_repeats=0, racing=False))
        else:
            run, searched = offline(home, file, steps)
        summary = runs.load(home / run).summary
        assert summary is not None
        return {
            "seconds": watched.runs[run].seconds(1, steps) + searched,
            "loss": summary.validation_loss,
            "config": load(home / run / run_folder.CONFIG).model_dump(mode="json"),
        }


ARMS = (
    "tuned as it goes",
    "its end from the start",
    "untouched",
    "tuned offline, then run",
    "random windows",
)


def rows_of(kept: dict[str, dict[str, Row]]) -> list[list[str]]:
    """Each arm, over the seeds that have it and what it is compared with."""
    found = []
    for arm in ARMS:
        with_it = [of for of in kept.values() if arm in of]
        beside = [of for of in with_it if "untouched" in of]
        ended = [of for of in with_it if ARMS[1] in of]
        cells = [
            " ".join(f"{of[arm]['seconds']:.0f}" for of in with_it),
            _mean([of["untouched"]["seconds"] / of[arm]["seconds"] for of in beside], "{:.2f}"),
            _mean([of[arm]["seconds"] / of[ARMS[1]]["seconds"] - 1 for of in ended], "{:+.1%}"),
            _mean([of[arm]["loss"] / of["untouched"]["loss"] - 1 for of in beside], "{:+.2%}"),
        ]
        found.append([arm, str(len(with_it)), *cells])
    return found


def _mean(values: list[float], how: str) -> str:
    return how.format(fmean(values)) if values else "-"


def main() -> None:
    """Measure what is not kept yet, as long as there is time, and print the table."""
    parser = table.parser(__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=9.0)
    asked = parser.parse_args()
    kept = json.loads(KEPT.read_text()) if KEPT.is_file() else {}
    end = time.monotonic() + 60 * asked.minutes
    for seed in range(asked.seeds):
        known = kept.setdefault(f"{asked.steps} {seed}", {})
        for arm in ARMS:
            if arm not in known and time.monotonic() < end:
                known[arm] = measure(arm, asked.steps, seed, known) | {"commit": table.commit()}
                if asked.save:
                    table.keep(KEPT, kept)
    chosen = {key: of for key, of in kept.items() if key.startswith(f"{asked.steps} ")}
    header = (
        "run",
        "seeds",
        "seconds",
        "times sooner than untouched",
        "over its end from the start",
        "held-out loss",
    )
    title = f"A run of {asked.steps} steps on two islands with 100 Mbit/s between them"
    table.show("live_worth", title, header, rows_of(chosen), asked.save)


if __name__ == "__main__":
    main()
