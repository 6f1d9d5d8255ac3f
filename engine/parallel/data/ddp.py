"""Data parallelism with whole parameters on each rank: gradients averaged in buckets while backward goes on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from engine.config.run_config import RunConfig
from engine.model.stage import Stage
from engine.parallel.data.averaging import AveragedParameters
from engine.parallel.data.replica import CompressedGradients, Piece, ReplicaMemory, UpdateGroup, run_backward


class DataParallel:
    """A ``Replica`` whose parameters are in parts, each averaged over the ranks that hold copies of it.

    ``lent`` are parts of other stages of this rank, with parameters that this one has, too.
    """

    def __init__(
        self,
        model: Stage,
        parts: Sequence[AveragedParameters],
        compiled: bool = False,
        lent: Sequence[AveragedParameters] = (),
    ) -> None:
        self.model, self.parts, self._all = model, parts, [*parts, *lent]
        self._compiled, self._hooked = compiled, False
        self._find_later()

    def forward(self, x: Tensor) -> Tensor:
        """The stage's output."""
        if self._at_once:
            self.drain()
        out: Tensor = self.model(x)
        return out

    def backward(self, output: Tensor, gradient: Tensor | None, last: bool) -> None:
        """Backward; the last one starts averaging bucket by bucket while it runs."""
        if last:
            for part in self.parts:
                part.arm()
        run_backward(output, gradient)

    def add_gradient(self, parameter: nn.Parameter, gradient: Tensor, last: bool) -> None:
        """Into its bucket; the last one of a step may fill it."""
        next(part for part in self._all if parameter in part.buckets.gradients).buckets.add(
            parameter, gradient, last
        )

    def keep_gathered(self, keep: bool) -> None:
        """Whole parameters are always there."""

    def finish(self) -> None:
        """Wait for the buckets that are not through."""
        for part in self.parts:
            part.finish()

    def pieces(self) -> list[Piece]:
        return [piece for part in self.parts for piece in part.pieces()]

    def waves(self) -> list[UpdateGroup]:
        return [wave for part in self.parts for wave in part.waves()]

    @property
    def has_averages(self) -> bool:
        """Parts are delayed alike."""
        return all(part.has_averages for part in self.parts)

    def mark_loaded(self) -> None:
        for part in self.parts:
            part.mark_loaded()

    def memories(self) -> list[ReplicaMemory]:
        return [memory for part in self.parts for memory in part.memories()]

    def uncompressed_reasons(self) -> dict[str, str]:
        return {name: reason for part in self.parts for name, reason in part.uncompressed_reasons().items()}

    def compressible_gradients(self) -> Sequence[CompressedGradients]:
        return [part for part in self.parts if part.compressor is not None]

    def reconfigure(self, config: RunConfig) -> None:
        for part in self.parts:
            part.reconfigure(config)
        self._find_later()

    def finish_update(self) -> None:
        """Bring new values where they are needed, and clear the buckets."""
        for part in self.parts:
            part.finish_update()

    def publish_weights(self) -> None:
        """Bring new values where they are needed."""
        for part in self.parts:
            part.publish_weights()

    def drain(self) -> None:
        for part in self.parts:
            part.drain()

    def close(self) -> None:
        for part in self.parts:
            part.close()

    def _find_later(self) -> None:
        """Which parts' weights arrive beside the next forward; hooks that wait for them find nothing otherwise."""
        self._later = [part for part in self.parts if part.arrives_later]
        self._at_once = bool(self._later) and self._compiled
        if self._later and not self._compiled and not self._hooked:
            self._hooked = True
            for unit in self.model.units():
                unit.register_forward_pre_hook(self._arrive)

    def _arrive(self, unit: nn.Module, _: object) -> None:
        for part in self._later:
            part.wait_for_weights(unit.parameters())
