"""Workloads of published systems here: MASHA, OREPA, synthetic intermediate labels, and a stand-in for CaRL.

Distances, losses, accuracies and bytes do not depend on how busy the machine is; of OREPA processor seconds are taken,
of both forms in turn in one process. What has been measured is kept after each run.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import _table as table
from benchmarks._ratio import half_width, ratio
from engine.config.run_config import RunConfig, parse
from engine.model.workloads.blueprint import open_blueprint
from engine.model.workloads.published.extragradient import SADDLE_METHODS
from engine.model.workloads.sequential import ListedBlueprint, Tensors
from engine.parallel.build import single_rank_axes
from engine.session import Session
from profilers.model.run_summary import RunSummary

SYSTEMS = ("masha", "orepa", "labels", "carl")
KEPT = {name: table.RESULTS / f"systems_{name}.json" for name in SYSTEMS}
HEADER = ["of", "what", "measured"]
SADDLE_SEEDS, SEEDS = 5, 3
#: Steps to a saddle point, and the distances of which bytes are told.
SADDLE_STEPS = {"masha1": 900, "masha2": 900, "plain": 450, "naive_random": 160, "naive_top": 160}
DISTANCES = 1e-6, 1e-12
FORMS, ROUNDS = ("folded", "branches"), 20
APART, TOGETHER = 150, 150
REWARDS, MINIBATCHES, SAMPLES = ("completion", "shaped"), (64, 256, 1024), 2048
EPOCHS = 3


def config_of(workload: str, options: dict[str, Any], **more: Any) -> RunConfig:
    """A run of a workload on the CPU; calls of every step are recorded, for bytes differ from step to step."""
    tree = {"model": {"workload": workload, "options": options}, "device": "cpu", "profile": {"budget": None},
            "train": {"warmup": 1, "step_timeout_seconds": 300.0, "timeout_seconds": 3600.0}}  # fmt: skip
    return parse(tree).with_values({key.replace("__", "."): value for key, value in more.items()})


def saddle(method: str, seed: int) -> RunConfig:
    """Two ranks with four functions each; a fifth of 100 elements is sent, with naive methods too."""
    return config_of(
        "saddle", {"method": method, "share": 0.2, "seed": seed},
        parallel__dp=2, batch__global_batch=8, batch__micro_batch=4, train__steps=SADDLE_STEPS[method],
        train__learning_rate=0.15, train__validation_batches=1,
    )  # fmt: skip


def adversarial(method: str) -> RunConfig:
    """A network for images of eight pixels a side, against a disturbance."""
    return config_of(
        "saddle",
        {"problem": "adversarial", "method": method, "share": 0.2, "unknowns": 8, "functions": 256, "penalty": 1.0},
        parallel__dp=2, batch__global_batch=256, batch__micro_batch=128, train__steps=100,
        train__learning_rate=0.2, train__validation_batches=1,
    )  # fmt: skip


def partitioned(seed: int, apart: int, steps: int) -> RunConfig:
    """Two ranks with a half of six layers each."""
    return config_of(
        "partitioned", {"apart": apart, "seed": seed, "image": 2},
        parallel__pp=2, batch__global_batch=32, batch__micro_batch=16, train__steps=steps, train__seed=seed,
        train__learning_rate=1e-3, train__validation_batches=8,
    )  # fmt: skip


def driving(reward: str, minibatch: int, seed: int) -> RunConfig:
    """Two ranks with four environments each; equally many samples for every minibatch."""
    return config_of(
        "driving", {"reward": reward, "rollout": 128, "epochs": EPOCHS},
        parallel__dp=2, batch__global_batch=minibatch, batch__micro_batch=min(64, minibatch // 2),
        train__steps=EPOCHS * SAMPLES // minibatch, train__seed=seed, train__learning_rate=3e-4,
        train__validation_batches=1,
    )  # fmt: skip


Runs = dict[str, tuple[RunConfig, Callable[[RunSummary], Any]]]


def runs_of(system: str) -> Runs:
    """A system's runs by name, and what is kept of each."""
    runs: Runs = {}
    if system == "masha":
        for method in SADDLE_METHODS:
            runs[f"adversarial, {method}"] = adversarial(method), _ended
            for seed in range(SADDLE_SEEDS):
                runs[f"saddle, {method}, {seed}"] = saddle(method, seed), _reached
    if system == "labels":
        for seed in range(SEEDS):
            for name, apart in (("apart", APART), ("joint", 0)):
                for steps in (APART, APART + TOGETHER):
                    config = partitioned(seed, apart, steps)
                    runs[f"partitioned, {name}, {seed}, {steps}"] = config, _ended
    if system == "carl":
        for seed in range(SEEDS):
            for reward in REWARDS:
                for minibatch in MINIBATCHES:
                    runs[f"driving, {reward}, {minibatch}, {seed}"] = driving(reward, minibatch, seed), _ended
    return runs


def _reached(summary: RunSummary) -> dict[str, Any]:
    """Steps to each distance, and bytes a step and rank."""
    losses = np.array(summary.losses)
    steps = [int(np.argmax(losses < one)) if (losses < one).any() else None for one in DISTANCES]
    logs = np.log(losses[losses > DISTANCES[-1]])
    line = float(np.corrcoef(logs, np.arange(len(logs)))[0, 1])
    return {
        "steps": steps,
        "last": summary.validation_loss,
        "least": float(losses.min()),
        "line": line,
    } | _ended(summary)


def _ended(summary: RunSummary) -> dict[str, Any]:
    rows = [row for row in summary.communication if row.operation != "recv"]
    return {
        "loss": summary.validation_loss,
        "metric": summary.validation_metric,
        "bytes": sum(row.bytes for row in rows),
        "wire": summary.wire_bytes_per_step,
    }


def run(system: str) -> dict[str, Any]:
    """What is missing is measured; what has been is kept after each run."""
    kept_at = KEPT[system]
    kept = table.kept(kept_at)
    missing = [name for name in runs_of(system) if name not in kept]
    with tempfile.TemporaryDirectory() as home, Session(Path(home)) as session:
        for name in missing:
            config, keep = runs_of(system)[name]
            outcome, summary = session.execute(config, {}, lambda: False)
            if not outcome.good:
                raise SystemExit(f"{name}: {outcome}")
            kept[name] = keep(summary)
            table.keep(kept_at, kept)
    if system == "orepa" and not kept:
        kept = convolutions()
        table.keep(kept_at, kept)
    return kept


def convolutions(rounds: int = ROUNDS) -> dict[str, Any]:
    """Bytes kept for the backward, processor seconds of forward and backward, and losses, of both forms in turn."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {"saved": {}, "seconds": {form: [] for form in FORMS}, "loss": {}}
    steps = {form: _step(form) for form in FORMS}
    for form in FORMS:
        sizes: dict[int, int] = {}

        def keep(x: torch.Tensor, sizes: dict[int, int] = sizes) -> torch.Tensor:
            sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            loss = steps[form]()
        found["loss"][form], found["saved"][form] = float(loss.detach()), sum(sizes.values())
    for _ in range(rounds):
        for form in FORMS:
            began = time.process_time()
            steps[form]().backward()
            found["seconds"][form].append(time.process_time() - began)
    return found


def _step(form: str) -> Callable[[], torch.Tensor]:
    blueprint = open_blueprint(config_of("convolutions", {"form": form}), single_rank_axes())
    assert isinstance(blueprint, ListedBlueprint)
    model = blueprint.stage(range(blueprint.blocks), single_rank_axes())
    inputs, targets = Tensors(blueprint.workload).training(0, 32)
    return lambda: model.loss(model(inputs), targets)


def rows(system: str, kept: dict[str, Any]) -> list[list[str]]:
    """A row of each setting."""
    return _ROWS[system](kept)


def _masha_rows(kept: dict[str, Any]) -> list[list[str]]:
    found = []
    for method in SADDLE_METHODS:
        of = [kept[f"saddle, {method}, {seed}"] for seed in range(SADDLE_SEEDS)]
        ends = ", ".join(f"{one['last']:.0e}" for one in of)
        sent = ", ".join(_sent(of, place) for place in range(len(DISTANCES)))
        found.append(["quadratic", method, f"last distance {ends}; {sent}"])
    for method in SADDLE_METHODS:
        one = kept[f"adversarial, {method}"]
        text = f"robust accuracy {one['metric']:.3f}, loss {one['loss']:.3f}, {one['bytes']:.0f} bytes a step"
        found.append(["adversarial network", method, text])
    return found


def _orepa_rows(kept: dict[str, Any]) -> list[list[str]]:
    return [
        [form, name, f"{value:.6g}"]
        for form in FORMS
        for name, value in (
            ("loss", kept["loss"][form]),
            ("bytes kept for the backward", kept["saved"][form]),
            ("processor seconds, median", float(np.median(kept["seconds"][form]))),
        )
    ]


def _phase_1(kept: dict[str, Any]) -> float:
    """Bytes that any step and rank sent."""
    return max(float(kept[f"partitioned, apart, {seed}, {APART}"]["bytes"]) for seed in range(SEEDS))


def _recovery(kept: dict[str, Any]) -> float:
    """Bytes that a rank sends in a step of phase 2; those kept are means over all steps but the one of warm-up."""
    mean = kept[f"partitioned, apart, 0, {APART + TOGETHER}"]["bytes"]
    return float(mean) * (APART + TOGETHER - 1) / TOGETHER


def _labels_rows(kept: dict[str, Any]) -> list[list[str]]:
    found = [["apart", "bytes of phase 1", f"{_phase_1(kept):g}"]]
    for name in ("apart", "joint"):
        for step in (APART, APART + TOGETHER):
            told = [f"{kept[f'partitioned, {name}, {seed}, {step}']['metric']:.3f}" for seed in range(SEEDS)]
            found.append([name, f"held-out accuracy after {step} steps", ", ".join(told)])
    return found


def _carl_rows(kept: dict[str, Any]) -> list[list[str]]:
    found = []
    for reward in REWARDS:
        for minibatch in MINIBATCHES:
            of = [kept[f"driving, {reward}, {minibatch}, {seed}"]["metric"] for seed in range(SEEDS)]
            found.append(
                [reward, f"minibatch {minibatch}: route completed", ", ".join(f"{one:.3f}" for one in of)]
            )
    return found


def _sent(of: list[dict[str, Any]], place: int) -> str:
    steps = [one.get("steps", [None, None])[place] for one in of]
    if None in steps:
        return f"never {DISTANCES[place]:g}"
    kilobytes = [count * one["bytes"] / 1000 for count, one in zip(steps, of, strict=True)]
    return f"{DISTANCES[place]:g} after {min(kilobytes):.0f} to {max(kilobytes):.0f} kB a rank"


def saved_ratio(kept: dict[str, Any]) -> float:
    """Bytes that branches keep over those that a folded kernel keeps."""
    saved = kept["saved"]
    return float(saved["branches"] / saved["folded"])


def interaction(kept: dict[str, Any]) -> list[float]:
    """By seed, how much more the completion reward gains from the largest minibatch than the shaped one."""

    def gain(reward: str, seed: int) -> float:
        ends = [
            kept[f"driving, {reward}, {size}, {seed}"]["metric"] for size in (MINIBATCHES[0], MINIBATCHES[-1])
        ]
        return float(ends[1] - ends[0])

    return [gain("completion", seed) - gain("shaped", seed) for seed in range(SEEDS)]


#: What tables are called.
TITLES = {
    "masha": "MASHA: saddle points over two ranks, a fifth of the elements sent, by seed",
    "orepa": "OREPA: folded and branch by branch, in one process, in turn",
    "labels": "Synthetic intermediate labels: two ranks apart, and then together, by seed",
    "carl": f"A small driving stand-in for CaRL: {SAMPLES} samples a run on highway-env, two ranks, by seed",
}


def _masha(kept: dict[str, Any]) -> list[str]:
    runs = {
        method: [kept[f"saddle, {method}, {seed}"] for seed in range(SADDLE_SEEDS)]
        for method in SADDLE_METHODS
    }
    solved = sum(one["least"] < 1e-12 for name in ("masha1", "masha2") for one in runs[name])
    stalled = sum(
        one.get("least", 1.0) > 1e-3 for name in ("naive_random", "naive_top") for one in runs[name]
    )
    line = max(one["line"] for name in ("masha1", "masha2") for one in runs[name])
    accuracies = ", ".join(
        f"{method} {kept[f'adversarial, {method}']['metric']:.2f}" for method in SADDLE_METHODS
    )
    good = solved == stalled == 2 * SADDLE_SEEDS
    return [
        "MASHA, workload `saddle`",
        f"within 1e-12 of the solution: {solved} of {2 * SADDLE_SEEDS} runs; log of the distance "
        f"over steps: r at most {line:.3f}",
        "to 1e-12: "
        + "; ".join(
            f"{name} {_sent(runs[name], 1).partition('after ')[2]}" for name in ("masha1", "masha2", "plain")
        ),
        "nothing is predicted",
        f"naive compression stalls: {stalled} of {2 * SADDLE_SEEDS}; robust accuracy of the network: {accuracies}",
        "no figure read",
        "comes to the solution where naive compression does not" if good else "does not keep every bar",
    ]


def _orepa(kept: dict[str, Any]) -> list[str]:
    one = kept
    apart = abs(one["loss"]["folded"] - one["loss"]["branches"])
    seconds = ratio(*(np.array(one["seconds"][form]) for form in ("branches", "folded")))
    middle = np.median(one["seconds"]["branches"]) / np.median(one["seconds"]["folded"])
    return [
        "OREPA, workload `convolutions`",
        f"loss of both forms: {apart:.0e} apart",
        f"kept for the backward: {saved_ratio(kept):.1f} times fewer",
        "nothing is predicted",
        f"branch by branch takes {seconds.plain()} times the processor time by means, {middle:.2f} by medians",
        "about 70 % less memory, about twice as fast as branch by branch",
        "pays" if apart < 1e-5 and seconds.low > 1 and saved_ratio(kept) > 1 else "does not keep every bar",
    ]


def _labels(kept: dict[str, Any]) -> list[str]:

    def mean(name: str, step: int) -> float:
        return float(
            np.mean([kept[f"partitioned, {name}, {seed}, {step}"]["metric"] for seed in range(SEEDS)])
        )

    ends = {name: mean(name, APART + TOGETHER) for name in ("apart", "joint")}
    joint = kept[f"partitioned, joint, 0, {APART + TOGETHER}"]["bytes"]
    return [
        "synthetic intermediate labels, workload `partitioned`",
        "both phases: losses of one process within 1e-5",
        f"phase 1: {_phase_1(kept):g}; then {_recovery(kept):,.0f} a step and rank, joint training {joint:,.0f}",
        "nothing is predicted",
        f"held-out accuracy {mean('apart', APART):.3f} before recovery and {ends['apart']:.3f} after; joint "
        f"training, equal steps: {mean('joint', APART):.3f} and {ends['joint']:.3f}",
        "accuracy close to joint training; no figure read",
        "as described"
        if ends["apart"] > ends["joint"] - 0.02
        else "further from joint training than described",
    ]


def _carl(kept: dict[str, Any]) -> list[str]:
    found = interaction(kept)
    signs = ", ".join(f"{one:+.3f}" for one in found)
    mean, half = float(np.mean(found)), half_width(found)
    told = "as in the paper" if mean > half else "the other way" if mean < -half else "not told from chance"
    return [
        "CaRL, workload `driving` (a small stand-in)",
        "an update of two ranks is that of one process: 1e-6",
        "gradients of the minibatch, once an update",
        "nothing is predicted",
        f"route gained from minibatch {MINIBATCHES[0]} to {MINIBATCHES[-1]}, by route completion less by the "
        f"shaped reward, {SAMPLES} samples, by seed: {signs}",
        "larger minibatches help the simple reward and harm the shaped one",
        f"interaction {mean:+.3f} ({mean - half:+.3f} to {mean + half:+.3f}): {told}",
    ]


#: By system, what makes its table, and its line among all systems, of what was kept.
_ROWS = {"masha": _masha_rows, "orepa": _orepa_rows, "labels": _labels_rows, "carl": _carl_rows}
LINES = {"masha": _masha, "orepa": _orepa, "labels": _labels, "carl": _carl}
