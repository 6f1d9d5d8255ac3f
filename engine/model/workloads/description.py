"""What a workload is, told before it runs: parts that can be built, their sizes, and FLOPs counted on meta tensors."""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from engine.config.errors import InputError
from engine.config.presets import FIELD, WorkloadFacts
from engine.model.workload import StepSetting
from engine.model.workloads.sequential import ListedBlueprint, Tensors, exception_line


def describe(blueprint: ListedBlueprint) -> WorkloadFacts:
    """Facts of a workload, of which every part is built on meta and what its data give is looked at.

    Raises:
        InputError: a part cannot be built, shares parameters, or does not fit its weights; the data are no
            samples; the loss is no number.
    """
    workload, config = blueprint.workload, blueprint.config
    _check_samples(blueprint)
    parts = {name: blueprint.build_on_meta(name, build) for name, build in blueprint.parts()}
    _check_shared(config.model.workload, parts)
    _check_all_used(blueprint, parts)
    _check_step(blueprint)
    sizes = _sizes(blueprint, parts)
    flops, reason = _count_flops(blueprint, list(parts.values()))
    return WorkloadFacts(
        name=workload.name or config.model.workload,
        blocks=len(workload.blocks),
        parameters=sum(map(math.prod, sizes.values())),
        tokens=workload.tokens,
        splits=tuple(workload.splits),
        flops=flops,
        flops_reason=reason,
        shapes_reason=_why_no_shapes(blueprint),
        metric=None if workload.metric is None else workload.metric_name,
        shared_parameters=sum(map(elements, parts.values())) - sum(map(math.prod, sizes.values())),
        own_step=None if workload.step is None else tuple(workload.step_axes),
        step_samples=workload.step_samples,
        narrowest=_narrowest(parts),
        places_width=_places_width(blueprint),
    )


def elements(module: nn.Module) -> int:
    """Parameters of a module."""
    return sum(math.prod(parameter.shape) for parameter in module.parameters())


def _narrowest(parts: dict[str, nn.Module]) -> int | None:
    """Side of a block's matrix."""
    blocks = [module for name, module in parts.items() if name.startswith("blocks.")]
    matrices = [module for block in blocks for module in block.modules() if isinstance(module, nn.Linear)]
    return min((min(matrix.in_features, matrix.out_features) for matrix in matrices), default=None)


def _places_width(blueprint: ListedBlueprint) -> tuple[int, int] | None:
    """Of what all blocks give, if they give the same."""
    if _why_no_shapes(blueprint):
        return None
    shapes = set(blueprint.shapes(1))
    is_common_shape = len(shapes) == 1 and all(len(shape) == 3 for shape in shapes)
    return next((shape[1], shape[2]) for shape in shapes) if is_common_shape else None


def _why_no_shapes(blueprint: ListedBlueprint) -> str:
    try:
        blueprint.shapes(1)
        return ""
    except InputError as error:
        return error.remedy


def _check_samples(blueprint: ListedBlueprint) -> None:
    samples, spec = Tensors(blueprint.workload), blueprint.config.model.workload
    wanted = [("training", samples.training)]
    if blueprint.config.train.validation_batches:
        wanted.append(("validation", samples.validation))
    for name, give in wanted:
        try:
            give(0, 2)
        except Exception as error:
            raise InputError(
                FIELD, spec, f"its batches.{name}(0, 2) raises {exception_line(error)}"
            ) from error


def _check_shared(spec: str, parts: dict[str, nn.Module]) -> None:
    """A pipeline or ZeRO would make two parameters of one."""
    names: dict[int, str] = {}
    for name, module in parts.items():
        for parameter_name, parameter in module.named_parameters(remove_duplicate=False):
            full = f"{name}.{parameter_name}"
            other = names.setdefault(id(parameter), full)
            if other != full:
                remedy = f"{other} and {full} are one parameter; each part has to have its own"
                raise InputError(FIELD, spec, remedy)


def _check_all_used(blueprint: ListedBlueprint, parts: dict[str, nn.Module]) -> None:
    """Weights of another model may fit this one in part. A mapping that reads files has names of its own."""
    weights = blueprint.workload.weights
    if not isinstance(weights, dict):
        return
    names = {f"{name}.{key}" for name, module in parts.items() for key, _ in module.named_parameters()}
    if other := next((name for name in weights if name not in names), None):
        remedy = f"its weights have {other}, and no part has such a parameter; leave it out"
        raise InputError(FIELD, blueprint.config.model.workload, remedy)


def _check_step(blueprint: ListedBlueprint) -> None:
    """What a step of its own says of a configuration is to be known before ranks start."""
    if (step := blueprint.workload.step) is not None:
        whole = blueprint.stage(range(blueprint.blocks), blueprint.alone, on_meta=True)
        step(StepSetting(whole, None, blueprint.config, lambda _: nullcontext()))


def _sizes(blueprint: ListedBlueprint, parts: dict[str, nn.Module]) -> dict[str, tuple[int, ...]]:
    """Shape of each parameter by its one name."""
    sharing, model, shapes_of_parts = blueprint.sharing, blueprint.config.model, dict[str, tuple[int, ...]]()
    for part, module in parts.items():
        shapes_of_parts |= {
            f"{part}.{name}": tuple(parameter.shape) for name, parameter in module.named_parameters()
        }
    for name in [*shapes_of_parts, *(sharing.tied or ())]:
        for other in sharing.names(name):
            if shapes_of_parts.get(name) != shapes_of_parts.get(other) or other not in shapes_of_parts:
                shapes = " and ".join(
                    f"{member} is {list(shapes_of_parts.get(member, ())) or 'not there'}"
                    for member in (name, other)
                )
                tied = name in (sharing.tied or ())
                field = "tied_embeddings" if tied else "layer_groups"
                remedy = f"{shapes}; only what is alike can be one"
                raise InputError(f"model.{field}", getattr(model, field), remedy)
    return {sharing.name(name): shape for name, shape in shapes_of_parts.items()}


def _count_flops(blueprint: ListedBlueprint, parts: list[nn.Module]) -> tuple[int | None, str]:
    """FLOPs of forward and backward of one sample, or why there are none.

    Raises:
        InputError: its loss is no number.

    ``FlopCounterMode`` counts matrix products, convolutions and attention, a multiply-add as 2.
    """
    inputs, targets = blueprint.inputs_on_meta(blueprint.config.batch.micro_batch)
    try:
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            x = inputs
            for part in parts:
                x = part(x)
            loss = _scalar(blueprint.loss_on_meta(x, targets), blueprint.config.model.workload)
            loss.backward()
    except InputError:
        raise
    except Exception as error:
        return None, f"on meta tensors the model raises {exception_line(error)}"
    total = counter.get_total_flops() / len(inputs)
    if not total:
        return None, "torch's FlopCounterMode finds no matrix product, convolution or attention in the model"
    return math.ceil(total), ""


def _scalar(loss: object, spec: str) -> Tensor:
    if not isinstance(loss, Tensor):
        raise InputError(FIELD, spec, f"its loss returns {type(loss).__name__}; it has to return a tensor")
    if loss.ndim:
        remedy = f"its loss has the shape {list(loss.shape)}; it has to be one number, the mean over samples"
        raise InputError(FIELD, spec, remedy)
    return loss
