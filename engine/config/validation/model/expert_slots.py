"""The rules of experts that lie elsewhere than in their slots. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from engine.config.errors import LayoutError, several
from engine.config.knobs.facts import Context
from engine.config.presets import is_decoder, resolve
from engine.config.run_config import RunConfig
from engine.config.validation.refusals import refused_settings

KEY = "memory.expert_slots"
_FP32 = 4
#: A configuration is judged without a look at the machine, be there a GPU in it or not.
_ON_GPUS = {"auto": "device auto takes a GPU where there is one", "cuda": "device is cuda"}


def slot_problems(config: RunConfig) -> Iterator[LayoutError]:
    """Of ``memory.expert_slots`` and ``expert_home``."""
    memory, slots = config.memory, config.memory.expert_slots
    if slots is None:
        for name, value, default in (
            ("home", memory.expert_home, "host"),
            ("ahead", memory.expert_ahead, True),
        ):
            if value != default:
                yield LayoutError(f"memory.expert_{name}", value, f"needs {KEY}; set that, or leave this out")
        return
    if config.model.experts is None or not is_decoder(config.model):
        yield LayoutError(KEY, slots, "there are no experts; set model.experts, or leave this out")
        return
    experts = config.model.experts // config.parallel.ep * resolve(config.model).layers
    size, limit = slot_bytes(config), memory.limit_gib
    reasons = {
        f"a model's ranks have no more than {several(experts, 'experts')}; choose fewer slots, or leave it out": slots
        > experts,
        f"take {slots * size / 2**30:.3g} GiB, and memory.limit_gib is {limit}; {_limit_remedy(limit, size)}": limit
        is not None
        and slots * size > limit * 2**30,
        f"are of CPU ranks so far, and {_ON_GPUS.get(config.device)}; set device to cpu, or leave it out": config.device
        in _ON_GPUS
        and not config.lab.is_wanted,
    }
    for remedy, applies in reasons.items():
        if applies:
            yield LayoutError(KEY, slots, remedy)
    for setting in refused_settings(config, Context.EXPERT_SLOTS):
        yield LayoutError(KEY, slots, f"{setting.why}; {setting.named_remedy}")


def _limit_remedy(limit: float | None, size: int) -> str:
    """What to do where slots take more than the limit."""
    fitting = int((limit or 0) * 2**30 // size)
    if fitting:
        return f"choose at most {fitting}"
    return f"not one of {size / 2**30:.3g} GiB fits: raise that, or leave this out"


def slot_bytes(config: RunConfig) -> int:
    """Of one expert's matrices on a rank."""
    shape = resolve(config.model)
    width = (config.model.expert_ffn_hidden or shape.ffn_hidden) // config.parallel.tp
    return 3 * _FP32 * width * shape.hidden
