"""KARMA (arXiv 2008.11421) here: 20 budgets for the activations of one decoder, each planned block by block.

One process, one thread of computation. Copies are paced, each direction by itself: a block takes ``SLOWER`` times its
forward to the host, as one of hidden size 4,096 does on an A100 over PCIe 4 (34 s b h bytes, 24 s b h^2 FLOPs at 150
TFLOP/s, 25 GB/s), and four times that to disk. Plans are made from what the engine measures when a run starts. Plans,
every uniform setting, and one plan a second time (A/A) then take steps in turn, in random order.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import _table as table
from benchmarks._ratio import ratio
from benchmarks._saved_bytes import SavedBytes
from engine.config.run_config import RunConfig, parse
from engine.config.sections import BlockAction
from engine.footprint import block_plan
from engine.footprint.activations import costs_of_block
from engine.footprint.block_plan import BlockPlan, Cost, StageOverhead
from engine.footprint.budget import stage_surroundings
from engine.footprint.footprint import plan_of
from engine.model.activation_memory import Offload, Tier
from engine.model.copies import Copies, DiskCopies, ThreadCopies
from engine.model.decoder import Block, Decoder
from engine.model.workloads.blueprint import open_blueprint
from engine.parallel.build import single_rank_axes
from engine.parallel.memory_plan import add_seconds, measure

NAME, KEPT = "systems_out_of_core", table.RESULTS / "systems_out_of_core.json"
SLOWER, DISK_SLOWER = 2.0, 4.0
BUDGETS = 20
#: A prediction is right within this, and a plan never slower than the best uniform setting beyond it, as noise goes.
WITHIN, FASTER = 0.10, 0.05
AGAIN = "again"
_TIERS: dict[BlockAction, Tier] = {"offload": "host", "disk": "disk"}


def config_of() -> RunConfig:
    """The decoder."""
    return parse(
        {
            "model": {
                "layers": 10, "hidden": 256, "heads": 4, "kv_heads": 4, "ffn_hidden": 704, "vocabulary": 256,
            },
            "data": {"sequence_length": 256},
            "batch": {"micro_batch": 2, "global_batch": 2},
            "device": "cpu",
        }
    )  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """What plans are made from: costs of a block, what a stage has besides, and the paced rates in bytes a second."""

    choices: list[dict[BlockAction, Cost]]
    around: StageOverhead
    rates: dict[BlockAction, float]

    def plans(self) -> list[tuple[int, BlockPlan]]:
        """Of each budget, from the least to what keeping all takes."""
        least = block_plan.least_bytes(self.choices, self.around)
        most = block_plan.evaluate(self.choices, ["keep"] * len(self.choices), self.around).peak_bytes
        budgets = [int(one) for one in np.linspace(least, most, BUDGETS)]
        found = [(budget, block_plan.best(self.choices, self.around, budget)) for budget in budgets]
        return [(budget, plan) for budget, plan in found if plan is not None]

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        block = {
            action: {name: getattr(cost, name) for name in Cost.__dataclass_fields__}
            for action, cost in self.choices[0].items()
        }
        return {"block": block, "turn_seconds": self.around.turn_seconds, "rates": self.rates}


def measured_setting(config: RunConfig, folder: Path) -> Setting:
    """As the engine measures it when a run starts, with copies that are as slow as they are to be."""
    blueprint, layers = open_blueprint(config, single_rank_axes()), range(config.model.layers or 0)
    device, size = torch.device("cpu"), costs_of_block(config)["offload"].away

    def found(rates: dict[BlockAction, float]) -> tuple[Any, dict[BlockAction, Cost]]:
        known = measure(
            config, blueprint, layers, single_rank_axes(), device, lambda one: copies_of(one, rates, folder)
        )
        return known, add_seconds(costs_of_block(config), known)

    _, free = found({})
    host = size / (SLOWER * free["keep"].forward_seconds)
    rates: dict[BlockAction, float] = {"offload": host, "disk": host / DISK_SLOWER}
    known, block = found(rates)
    return Setting([block] * len(layers), stage_surroundings(config, plan_of(config), 0, known.turn), rates)


def setting_of(config: RunConfig, kept: dict[str, Any]) -> Setting:
    """One that was measured before."""
    block = {action: Cost(**cost) for action, cost in kept["block"].items()}
    around = stage_surroundings(config, plan_of(config), 0, kept["turn_seconds"])
    return Setting([block] * (config.model.layers or 0), around, kept["rates"])


def copies_of(action: BlockAction, rates: dict[BlockAction, float], folder: Path) -> Copies:
    """At their rate; without one as fast as they go."""
    rate = rates.get(action)
    return ThreadCopies(rate) if action == "offload" else DiskCopies(torch.device("cpu"), folder, rate)


class Trained:
    """The decoder, whose blocks follow one list of actions after the other."""

    def __init__(self, config: RunConfig, setting: Setting, folder: Path) -> None:
        decoder = open_blueprint(config, single_rank_axes()).stage(
            range(config.model.layers or 0), single_rank_axes()
        )
        assert isinstance(decoder, Decoder)
        self.decoder, self._offload = decoder, Offload()
        for action, tier in _TIERS.items():
            self._offload.take(tier, copies_of(action, setting.rates, folder))
        shape = (config.batch.micro_batch, config.data.sequence_length)
        generator = torch.Generator().manual_seed(0)
        self._tokens, self._targets = (torch.randint(256, shape, generator=generator) for _ in range(2))

    def follow(self, actions: Sequence[BlockAction]) -> None:
        """From the next step on."""
        for action, block in zip(actions, self.decoder.blocks.values(), strict=True):
            assert isinstance(block, Block)
            block.keep(action if action in ("selective", "full") else "none")
        tiers = [_TIERS.get(action) for action in actions]
        self._offload.tiers = tiers
        self.decoder.offload = self._offload if any(tiers) else None

    def step(self) -> float:
        """The loss of a forward, after its backward."""
        loss = self.decoder.loss(self.decoder(self._tokens), self._targets)
        loss.backward()
        return float(loss.item())

    def gradients(self) -> list[torch.Tensor]:
        """Those of the latest step, which are let go of."""
        found = [one.grad for one in self.decoder.parameters() if one.grad is not None]
        self.decoder.zero_grad()
        return found

    def counted(self) -> int:
        """The most bytes that saved tensors hold in a step."""
        with SavedBytes(self.decoder.rotary, *self.decoder.parameters()) as counter:
            self.step()
        self.gradients()
        return counter.peak

    def close(self) -> None:
        """Its threads end."""
        self._offload.close()


def run(rounds: int, kept_at: Path = KEPT, config: RunConfig | None = None) -> dict[str, Any]:
    """As many rounds in all; those that are kept count. What has been measured is kept after each."""
    config = config or config_of()
    kept = table.kept(kept_at)
    with tempfile.TemporaryDirectory() as name, one_thread():
        folder = Path(name)
        if not kept:
            kept = {"setting": measured_setting(config, folder).as_dict(), "seconds": {}, "rounds": 0}
        setting = setting_of(config, kept["setting"])
        lists = _lists(setting)
        trained = Trained(config, setting, folder)
        try:
            if "checked" not in kept:
                kept["checked"] = {key: _checked(trained, actions) for key, actions in lists.items()}
            while kept["rounds"] < rounds:
                for key in random.sample(list(lists), len(lists)):
                    trained.follow(lists[key])
                    kept["seconds"].setdefault(key, []).append(_timed(trained))
                kept["rounds"] += 1
                kept_at.parent.mkdir(exist_ok=True)
                table.keep(kept_at, kept)
        finally:
            trained.close()
    return kept


def _lists(setting: Setting) -> dict[str, Sequence[BlockAction]]:
    """Every different list of actions, by its written form; one plan twice."""
    plans = [plan.actions for _, plan in setting.plans()]
    uniform = [one.actions for one in block_plan.uniform(setting.choices, setting.around)]
    lists: dict[str, Sequence[BlockAction]] = {written(one): one for one in (*plans, *uniform)}
    return lists | {AGAIN: plans[len(plans) // 2]}


def _checked(trained: Trained, actions: Sequence[BlockAction]) -> dict[str, Any]:
    """Counted bytes, and whether loss and gradients are those of keeping all, to the bit."""
    trained.follow(["keep"] * len(actions))
    loss, wanted = trained.step(), trained.gradients()
    trained.follow(actions)
    same = trained.step() == loss
    pairs = zip(trained.gradients(), wanted, strict=True)
    return {"bytes": trained.counted(), "equal": same and all(torch.equal(a, b) for a, b in pairs)}


def _timed(trained: Trained) -> float:
    began = time.perf_counter()
    trained.step()
    seconds = time.perf_counter() - began
    trained.gradients()
    return seconds


def written(actions: Sequence[str]) -> str:
    """Stretches of the same action: ``3 full, keep``."""
    found: list[tuple[str, int]] = []
    for action in actions:
        if found and found[-1][0] == action:
            found[-1] = action, found[-1][1] + 1
        else:
            found.append((action, 1))
    return ", ".join(action if count == 1 else f"{count} {action}" for action, count in found)


@contextmanager
def one_thread() -> Iterator[None]:
    """Of computation; copies have the others."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


HEADER = [
    "budget, MiB",
    "plan, from the first block on",
    "counted / budget",
    "equal to the bit",
    "predicted, ms",
    "measured (mean), ms",
    "measured / predicted",
    "best uniform that fits",
    "its time / the plan's",
    "verdict",
]


def rows(kept: dict[str, Any], config: RunConfig | None = None) -> tuple[list[list[str]], dict[str, int]]:
    """A row of each budget, and how many of them keep each bar. Faster is meant with the whole interval; that a plan is
    not slower than the best uniform setting is only not refuted.
    """
    setting = setting_of(config or config_of(), kept["setting"])
    seconds = {key: np.array(values) for key, values in kept["seconds"].items()}
    uniform = {written(one.actions): one for one in block_plan.uniform(setting.choices, setting.around)}
    found, bars = [], {"within": 0, "equal": 0, "predicted": 0, "not slower": 0, "5 % faster": 0}
    for budget, plan in setting.plans():
        key = written(plan.actions)
        mine, checked = seconds[key], kept["checked"][key]
        fitting = [name for name, one in uniform.items() if one.peak_bytes <= budget]
        best = min(fitting, key=lambda name: seconds[name].mean(), default=None)
        error = float(mine.mean()) / plan.seconds
        gain = None if best is None else ratio(seconds[best], mine)
        bars["within"] += checked["bytes"] <= budget
        bars["equal"] += checked["equal"]
        bars["predicted"] += abs(error - 1) <= WITHIN
        bars["not slower"] += gain is None or gain.high >= 1
        bars["5 % faster"] += gain is None or gain.low >= 1 + FASTER
        found.append(
            [
                f"{budget / 2**20:.1f}",
                key,
                f"{checked['bytes'] / budget:.3f}",
                "yes" if checked["equal"] else "no",
                f"{1e3 * plan.seconds:.0f}",
                f"{1e3 * mine.mean():.0f}",
                f"{error:.3f}",
                best or "none fits",
                "" if gain is None or best == key else gain.plain(),
                "the same" if best == key else _verdict(gain),
            ]
        )
    return found, bars


def _verdict(gain: Any) -> str:
    if gain is None:
        return "alone"
    if gain.low >= 1:
        return "faster"
    return "slower" if gain.high < 1 else "equal"


def uniform_rows(kept: dict[str, Any], config: RunConfig | None = None) -> list[list[str]]:
    """Every uniform setting; no plan has blocks on disk, whose copies take longer and spare no more of a host that has
    no limit.
    """
    setting = setting_of(config or config_of(), kept["setting"])
    found = []
    for one in block_plan.uniform(setting.choices, setting.around):
        name = written(one.actions)
        mean, checked = float(np.mean(kept["seconds"][name])), kept["checked"][name]
        cells = ["uniform", name, f"{checked['bytes'] / 2**20:.1f} MiB", "yes" if checked["equal"] else "no"]
        times = [f"{1e3 * one.seconds:.0f}", f"{1e3 * mean:.0f}", f"{mean / one.seconds:.3f}"]
        found.append([*cells, *times, "", "", ""])
    return found


def again_value(kept: dict[str, Any]) -> str:
    """The plan that was measured twice, over itself, with its interval."""
    return again_row(kept)[-2]


def again_row(kept: dict[str, Any], config: RunConfig | None = None) -> list[str]:
    """The plan that was measured twice."""
    setting = setting_of(config or config_of(), kept["setting"])
    plans = setting.plans()
    budget, plan = plans[len(plans) // 2]
    seconds = {key: np.array(kept["seconds"][key]) for key in (written(plan.actions), AGAIN)}
    twice = ratio(seconds[AGAIN], seconds[written(plan.actions)])
    cells = [
        f"{budget / 2**20:.1f}",
        "the same again (A/A)",
        "",
        "",
        "",
        f"{1e3 * seconds[AGAIN].mean():.0f}",
    ]
    return [*cells, "", written(plan.actions), twice.plain(), ""]


def title(kept: dict[str, Any], bars: dict[str, int]) -> str:
    """What was measured, at which rates, and how many budgets keep each bar."""
    rates = kept["setting"]["rates"]
    host, disk = (f"{rates[action] / 1e6:,.0f} MB/s" for action in ("offload", "disk"))
    told = ", ".join(f"{name} {count} of {BUDGETS}" for name, count in bars.items())
    return (
        f"Out-of-core training: {BUDGETS} budgets, copies paced to {host} (host) and {disk} (disk), "
        f"{kept['rounds']} rounds; {told}"
    )
