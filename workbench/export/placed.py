"""What an export says about the order of ranks: who has to see to it that each is on its device."""

from __future__ import annotations

from engine.config.run_config import RunConfig

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
