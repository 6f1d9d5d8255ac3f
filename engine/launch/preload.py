"""What the server of warm ranks loads before it forks: torch and the engine, out of the garbage collector's sight.

A full collection looks at every object there is, 0.1 s once torch is loaded; in a rank it would come at any
moment of a step and make the others wait. Frozen objects are not looked at, and their pages stay shared.
"""

from __future__ import annotations

import gc

import torch.distributed.fsdp  # noqa: F401  (loaded, not used)

import engine.rank.worker  # noqa: F401

gc.collect()
gc.freeze()
