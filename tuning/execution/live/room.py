"""Whether a turn of a run that goes on is predicted to fit into its ranks' memory. Pure.

What the run was measured to hold is taken for true; formulas say only by how much the turn would change it.
"""

from __future__ import annotations

from engine.config.presets import is_decoder
from engine.config.run_config import RunConfig
from engine.footprint.footprint import largest
from profilers.model.run_summary import RunSummary
from tuning.analysis.measures import free_bytes

_MIB = 2**20


def lacking(measured: RunConfig, summary: RunSummary, wanted: RunConfig) -> str:
    """Why values are not turned to, from what a window of the ``measured`` ones held; empty where they fit, or where
    nothing is known of a rank's memory.
    """
    if (
        wanted.trainer
        or not is_decoder(wanted.model)
        or (free := free_bytes(summary, wanted.memory.limit_gib)) is None
    ):
        return ""
    more = largest(wanted).total_bytes - largest(measured).total_bytes
    if more <= max(free, 0.0):
        return ""
    return (
        f"predicted not to fit: a rank would hold {more / _MIB:,.0f} MiB more than in the window before, and "
        f"{max(free, 0.0) / _MIB:,.0f} MiB are free"
    )
