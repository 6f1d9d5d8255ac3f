"""What a report of a lossy run's quality comes down to, in lines for the terminal and the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench import words


def lines(found: Mapping[str, Any]) -> list[str]:
    """What a report of a lossy run's quality comes down to."""
    if found["baseline"] is None:
        return ["no exact run of the same configuration, seed and data has ended yet; this makes one:"]
    row = found["compared"]
    if row is None:
        return [f"{found['baseline']} is the exact baseline, but no step has a held-out loss of both"]
    told = [
        f"after {row['step']:,} steps ({row['tokens']:,} tokens) the held-out loss is {row['loss']:.4f}, "
        f"and {row['baseline_loss']:.4f} for {found['baseline']}: {100 * row['increase']:+.2f} %"
    ]
    if row["times_fewer_bytes"] is not None:
        told.append(f"it sent {row['times_fewer_bytes']:,.3g} times fewer bytes until then")
    own, exact = row["seconds_to_target"], row["baseline_seconds_to_target"]
    if own is not None and exact is not None:
        took = f"{words.seconds(own)} of training, the baseline after {words.seconds(exact)}"
        told.append(f"a loss of {row['target_loss']:.4f} was there after {took}")
    return told
