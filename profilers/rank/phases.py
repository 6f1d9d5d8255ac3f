"""Phases of a foreign training loop: forwards of its outermost modules, backwards, optimizers, data loaders."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from profilers import torch_private
from profilers.records.schema import PHASES
from profilers.steps.timer import StepTimer

_FORWARD = PHASES.index("forward")
#: How far below the modules that nobody calls it is looked for one that is.
_MOST_LEVELS = 4

Within = Callable[[], AbstractContextManager[Any]]


class JobTimer(StepTimer):
    """Of a loop whose steps may end anywhere, inside a phase too."""

    def leave(self, mark: Any = None) -> Any:
        """Resume the phase that was suspended last, from ``mark`` on where one says when it did.

        Nothing if the step in which it was suspended is over.
        """
        if len(self._stack) == 1:
            return None
        if mark is None:
            return super().leave()
        self._stack.pop()
        return self._change(self._stack[-1], mark)


class ForwardHooks:
    """Tells a timer when the job's model computes; ``on_evaluation`` is called where it does so without gradients.

    Hooks are on the outermost modules that hold parameters of an optimizer, so a step has a few calls of them. Where
    none of these is called, as with a trainer's wrapper, those one level deeper are tried after a step.
    """

    def __init__(
        self, timer: StepTimer, is_ours: Callable[[], bool], on_evaluation: Callable[[], None]
    ) -> None:
        self._timer, self._is_ours, self._on_evaluation = timer, is_ours, on_evaluation
        self._handles: list[Any] = []
        self._modules: list[nn.Module] = []
        self._levels, self._called = 0, False

    @property
    def was_called(self) -> bool:
        """Whether a module was called."""
        return self._called

    def look(self, parameters: Iterable[Any]) -> None:
        """Find the modules that hold some of these parameters, and put the hooks in."""
        self._put_hooks(outermost(parameters))

    def end_step(self) -> None:
        """A step is over."""
        if not self._called and self._levels < _MOST_LEVELS:
            self._levels += 1
            self._put_hooks(
                [child for module in self._modules for child in module.children()] or outermost(())
            )

    def stop(self) -> None:
        """Take the hooks out."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def start(self) -> None:
        """Put the hooks in again."""
        self._put_hooks(self._modules)

    def _put_hooks(self, modules: list[nn.Module]) -> None:
        self.stop()
        self._modules = modules
        for module in modules:
            self._handles += [
                module.register_forward_pre_hook(self._begin_forward),
                module.register_forward_hook(self._end_forward, always_call=True),
            ]

    def _begin_forward(self, module: nn.Module, _: Any) -> None:
        if not self._is_ours():
            return
        self._called = True
        if not module.training and not torch.is_grad_enabled():
            self._on_evaluation()
        self._timer.enter(_FORWARD)

    def _end_forward(self, *_: Any) -> None:
        if self._is_ours():
            self._timer.leave()


def outermost(parameters: Iterable[Any]) -> list[nn.Module]:
    """The modules that are part of no other, and hold one of these parameters; any parameter, if none does."""
    wanted = {id(parameter) for parameter in parameters}
    # By the type: asking some objects for their class has them load a package, or fail.
    modules = [candidate for candidate in gc.get_objects() if issubclass(type(candidate), nn.Module)]
    inner = {id(child) for module in modules for child in module.children()}
    outer = [module for module in modules if id(module) not in inner]
    owners = [module for module in outer if any(id(parameter) in wanted for parameter in module.parameters())]
    return owners or [
        module for module in outer if any(parameter.requires_grad for parameter in module.parameters())
    ]


class FunctionPatches:
    """Functions of torch that are looked up when they are called, with others in their place until ``stop``."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def put(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """``make`` is given the function, and returns what is called from now on."""
        function = getattr(owner, name)
        setattr(owner, name, functools.wraps(function)(make(function)))
        self._before.append((owner, name, function))

    def wrap_in_phase(self, owner: Any, name: str, phase: Within) -> None:
        """Have the function run inside a phase."""

        def make(function: Any) -> Any:
            def run(*arguments: Any, **named: Any) -> Any:
                with phase():
                    return function(*arguments, **named)

            return run

        self.put(owner, name, make)

    def stop(self) -> None:
        """Put them back."""
        for owner, name, function in reversed(self._before):
            setattr(owner, name, function)
        self._before = []


def watch_data(replaced: FunctionPatches, phase: Within) -> None:
    """Have a wait for torch's data loader run inside a phase."""
    replaced.wrap_in_phase(torch_private.DATA_ITERATOR, "__next__", phase)
