"""FlexSP: whole documents over groups of ranks that are planned for each batch, in the lab (``_sequences.py``)."""

from __future__ import annotations

from argparse import Namespace

from benchmarks import _sequences as sequences
from benchmarks import _sequences_paced as paced
from benchmarks import _table as table
from benchmarks.literature import System

#: Rounds take minutes each: one has every setting once, and its A/A row.
_ROUNDS = 2


def _line(given: Namespace, measures: bool) -> list[str]:
    if measures:
        kept, alone = sequences.run(min(_ROUNDS, given.lab_rounds)), paced.run()
        rows, _ = sequences.rows(kept)
        table.show(sequences.NAME, sequences.title(kept), sequences.HEADER, rows, given.save)
        table.show(paced.NAME, paced.title(alone), paced.HEADER, paced.rows(alone), given.save)
    else:
        kept, alone = table.kept(sequences.KEPT), table.kept(paced.KEPT)
    _, bars = sequences.rows(kept)
    exact = max(bars["losses"], bars["norms"]) <= sequences.SAME and bars["payload"] < 1e-9
    of_devices = paced.bars(alone)
    fast = min(bars["gain"], of_devices["gain"]) >= sequences.GAIN
    near = of_devices["off"] <= sequences.NEAR
    verdict = {
        (True, True): "pays where the longest documents need many ranks",
        (True, False): "pays, and its predictions miss their bar",
        (False, True): "predicted well, and gains less than its bar",
        (False, False): "misses the bars of gain and prediction",
    }
    return [
        "FlexSP, `parallel.sequence_groups: planned`",
        f"losses and norms of gradients within {bars['losses']:.1e} and {bars['norms']:.1e} of groups of one size",
        f"all-to-alls within {bars['payload']:.1e} of the formula, all that was sent within {bars['wire']:.2%}",
        f"a group's seconds off by {of_devices['off']:.1%} in the mean where work is paced (the same groups in two "
        f"equal runs by {of_devices['apart']:.1%}), by {bars['off']:.1%} with {sequences.RANKS} ranks on two cores",
        f"{bars['gain']:.2f} times as fast as the only size that cuts no more (A/A {bars['again']:.2f}), "
        f"{of_devices['gain']:.2f} times where work is paced (A/A {of_devices['again']:.2f}), "
        f"{bars['windows']:.2f} times the tokens/s of masked windows; a plan takes {bars['planner']:.2f} s, of which "
        f"{bars['waited']:.3f} s are waited for",
        "up to 1.98 times Megatron-LM and 1.72 times DeepSpeed",
        verdict[fast, near] if exact else "not exact",
    ]


SYSTEMS = {"sequences": System(sequences.KEPT, _line, (paced.KEPT,))}
