"""Holmes and Pipette in the lab: ranks placed and layers dealt, beside every other way (``_placed_orders.py``), and
networks of groups by where their members are, beside one for all (``_networks.py``).
"""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

from benchmarks import _networks as networks
from benchmarks import _placed_orders as placed
from benchmarks import _table as table
from benchmarks.literature import System


def _placed_line(given: Namespace, measures: bool) -> list[str]:
    kept = placed.run(given.lab_rounds) if measures else json.loads(placed.KEPT.read_text())
    if measures:
        table.show(placed.NAME, placed.title(kept), placed.HEADER, placed.rows(kept), given.save)
    return _placed(kept)


def _placed(kept: dict[str, Any]) -> list[str]:
    named = (placed.chosen_order(), *placed.chosen_of_shuffled())
    orders, cuts = (
        placed.Measured(kept, "orders", named),
        placed.Measured(kept, "cuts", [placed.chosen_cut()]),
    )
    apart, again = (placed.overlap(kept, name).plain() for name in (placed.APART, placed.AGAIN))
    even = placed.seconds(kept, "cuts")["4 4"] / min(placed.seconds(kept, "cuts").values())
    bars = {
        "order": orders.chosen <= 1 + placed.NEAR,
        "cut": cuts.chosen <= 1 + placed.NEAR,
        "prediction": orders.within == orders.count and cuts.within == cuts.count,
    }
    missed = [name for name, keeps in bars.items() if not keeps]
    return [
        "Holmes and Pipette, `parallel.placement`, `schedule.stage_layers: auto`",
        f"losses of all orders within {placed.loss_apart(kept):.1g}",
        "in `placement.md`",
        f"{orders.within} of {orders.count} orders and {cuts.within} of {cuts.count} cuts within 15 %, the worst "
        f"{orders.worst:.0%} and {cuts.worst:.0%} off; Spearman {orders.rank} and {cuts.rank}",
        f"order chosen, hosts shuffled in 24 ways: at most {orders.chosen:.2f} of the best of {orders.count}, the "
        f"slowest {orders.slowest:.2f}; cut chosen {cuts.chosen:.2f} of the best of 7, the even one {even:.2f}; "
        f"ZeRO 1 that waits for its gathers: {apart} of one that does not (A/A {again})",
        "Holmes: Megatron-LM at 0.72 of its speed on two clusters (read off a chart); of Pipette no figure read",
        f"misses its bar of {', '.join(missed)}" if missed else "keeps its bars",
    ]


def _networks_line(given: Namespace, measures: bool) -> list[str]:
    kept = networks.run(given.lab_rounds) if measures else json.loads(networks.KEPT.read_text())
    if measures:
        table.show(networks.NAME, networks.title(kept), networks.HEADER, networks.rows(kept), given.save)
    times = "; ".join(
        f"{order}: one network for all {networks.gain(kept, order, networks.ONE).plain()} times as long "
        f"(A/A {networks.gain(kept, order, networks.AGAIN).plain()})"
        for order in networks.ORDERS
    )
    apart = max(networks.bytes_apart(kept, order) for order in networks.ORDERS)
    worst = networks.worst(kept)
    return [
        "Holmes's networks by members, `network.inside`",
        f"losses of all settings within {networks.loss_apart(kept):.1g}",
        f"both cards together carry what one did, within {apart:.1%}",
        f"the worst step {worst:.0%} off",
        times,
        "no figure for this alone",
        "keeps its bar" if worst <= networks.FORETOLD else "misses its bar of prediction",
    ]


SYSTEMS = {
    "placed": System(placed.KEPT, _placed_line),
    "networks": System(networks.KEPT, _networks_line),
}
