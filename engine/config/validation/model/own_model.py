"""The rules for a workload that is not the decoder: what its modules cannot do, and what is not theirs. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from engine.config.errors import LayoutError, several
from engine.config.knobs.facts import Context
from engine.config.presets import FIELD, SHIPPED, facts_of
from engine.config.run_config import RunConfig
from engine.config.sections import Model
from engine.config.validation.refusals import refused_settings
from engine.schedules.registry import SCHEDULES

#: Of the model section, what any workload has.
_ANY = ("workload", "options", "tied_embeddings", "layer_groups")


def workload_problems(config: RunConfig) -> Iterator[LayoutError]:
    """Every broken rule."""
    model = config.model
    if model.workload not in SHIPPED and not all(model.workload.rpartition(":")[::2]):
        names = ", ".join(["decoder", *SHIPPED])
        remedy = f"is no workload; give package.module:factory, file.py:factory, or one of {names}"
        yield LayoutError(FIELD, model.workload, remedy)
    yield from _foreign_keys(model)
    facts, stages = facts_of(model), config.parallel.pp * config.schedule.chunks
    for axis, cut in (("tp", "matrices"), ("cp", "sequences"), ("ep", "experts")):
        degree = getattr(config.parallel, axis)
        unknown = facts is None and axis != "ep"
        if degree > 1 and not unknown and (facts is None or axis not in facts.splits):
            remedy = (
                f"{model.workload} does not say how its {cut} are split; set it to 1, and dp or pp higher"
            )
            yield LayoutError(f"parallel.{axis}", degree, remedy)
    if facts is not None and facts.shapes_reason and stages > 1:
        yield LayoutError(
            "parallel.pp", config.parallel.pp, f"{facts.shapes_reason}; set it and schedule.chunks to 1"
        )
    if facts is not None and facts.own_step is not None:
        yield from _own_step_problems(config, facts.own_step)
        if facts.step_samples not in (None, config.batch.global_batch):
            remedy = (
                f"{model.workload} takes steps of {several(facts.step_samples, 'samples')}; set it to that"
            )
            yield LayoutError("batch.global_batch", config.batch.global_batch, remedy)
    for setting in refused_settings(config, Context.OTHER_MODEL):
        yield LayoutError(setting.key, setting.value, f"{setting.why}; {setting.remedy}")
    if "selective" in (config.memory.block_actions or ()):
        remedy = "only the decoder knows its attention core; give full, or keep, for selective"
        yield LayoutError("memory.block_actions", "selective", remedy)
    if SCHEDULES[config.schedule.kind].splits_backward and stages > 1:
        remedy = "splits the backward, which only the decoder's matrices can; set it to 1f1b or interleaved"
        yield LayoutError("schedule.kind", config.schedule.kind, remedy)


def _own_step_problems(config: RunConfig, axes: tuple[str, ...]) -> Iterator[LayoutError]:
    """Settings of the engine's step would silently change nothing."""
    workload = config.model.workload
    for axis in ("dp", "pp"):
        degree = getattr(config.parallel, axis)
        if axis not in axes and degree > 1:
            remedy = (
                f"{workload} takes steps of its own, which work over {' and '.join(axes)} alone; set it to 1"
            )
            yield LayoutError(f"parallel.{axis}", degree, remedy)
    for setting in refused_settings(config, Context.OWN_STEP):
        remedy = f"{workload} takes steps of its own, which {setting.why}; {setting.remedy}"
        yield LayoutError(setting.key, setting.value, remedy)


def _foreign_keys(model: Model) -> Iterator[LayoutError]:
    """Sizes of the decoder would silently change nothing."""
    usual = Model()
    for name in type(model).model_fields:
        value = getattr(model, name)
        if name not in _ANY and value != getattr(usual, name):
            remedy = f"is the decoder's, and {model.workload} is trained; give its factory model.options"
            yield LayoutError(f"model.{name}", value, remedy)
