"""A state to a folder and back, through ``torch.distributed.checkpoint``; every rank of the group takes part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner, FileSystemReader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.futures import Future

from engine.checkpoint.checkpoint_folder import Manifest, checksum, mark_save, publish, scratch_of
from engine.checkpoint.resume import ResumePoint, alternative_remedy, wrong_contents
from engine.checkpoint.state import MEMORY, Part, State, box_values
from engine.comm.channel import Group
from engine.config.errors import WorkbenchError
from profilers.collectives.recorder import pause_recording


class CheckpointError(WorkbenchError):
    """A checkpoint could not be written or read."""


class _SavePlanner(DefaultSavePlanner):
    """Looks up the boxes of parts, which the default one expects of tensors alone."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        return box_values(self.state_dict[index.fqn], index)


class _LoadPlanner(DefaultLoadPlanner):
    """Looks up the boxes of parts for reading; the default planner begins by dropping what is not a tensor."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        self.state_dict, self.metadata, self.is_coordinator = state_dict, metadata, is_coordinator

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        return box_values(self.state_dict[index.fqn], index)


class _PublishingWriter(FileSystemWriter):
    """Makes the checkpoint the last good one when all ranks have written; if that fails, all ranks know."""

    def __init__(self, run: Path, manifest: Manifest, keep: int, protect: int | None) -> None:
        super().__init__(scratch_of(run, manifest.step), overwrite=False)
        self._run, self._manifest, self._keep, self._protect = run, manifest, keep, protect
        self.published: Manifest | None = None

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[Any]]:
        """Write this rank's files; their checksums travel to the first rank beside what is written where."""
        try:
            written = super().write_data(plan, planner).value()
        except Exception as error:
            raise _root(error) from None
        names = {result.storage_data.relative_path for result in written}
        scratch = scratch_of(self._run, self._manifest.step)
        future: Future[list[Any]] = Future()
        future.set_result([*written, {name: checksum(scratch / name) for name in names}])
        return future

    def finish(self, metadata: Any, results: list[list[Any]]) -> None:
        """On the first rank, when all have written."""
        super().finish(metadata, [written for *written, _ in results])
        sums = {name: value for *_, storage_sums in results for name, value in storage_sums.items()}
        self.published = publish(self._run, self._manifest, sums, self._keep, self._protect)


def save(
    state: State, run: Path, manifest: Manifest, keep: int, group: Group, protect: int | None = None
) -> Manifest | None:
    """Write and publish one checkpoint; returns its manifest with all files on the group's first rank.

    Raises:
        CheckpointError: it could not be written, with the reason of the first rank that failed.
    """
    writer = _PublishingWriter(run, manifest, keep, protect)
    with pause_recording(), mark_save(run):
        try:
            dcp.save(state, storage_writer=writer, planner=_SavePlanner(), process_group=group)
        except CheckpointException as error:
            raise CheckpointError(_reason(error)) from error
    return writer.published


def load(state: State, point: ResumePoint, group: Group) -> bool:
    """Fill a state in place from a checkpoint of any layout.

    What compression left out belongs to one rank's gradients: False if the checkpoint does not hold it for the ranks
    of this layout, which then starts anew. So does, without a word, a part that may and has another size than the
    saved one, as a factor of another rank.

    Raises:
        CheckpointError: it is not what was saved, or cannot be read.
    """
    folder = point.folder
    _check_contents(point, group)
    with pause_recording():
        try:
            reader = FileSystemReader(folder)
            stored = reader.read_metadata().state_dict_metadata
            memories = {name for name in state if name.startswith(MEMORY)}
            optional = {name for name in memories if _may_start_anew(state[name])}
            fits = memories - optional <= stored.keys()
            fresh_names = {name for name in optional if not _is_alike(state[name], stored.get(name))}
            unsupported = fresh_names if fits else memories
            wanted = {name: value for name, value in state.items() if name not in unsupported}
            dcp.load(wanted, storage_reader=reader, planner=_LoadPlanner(), process_group=group)
        except CheckpointException as error:
            raise CheckpointError(f"{folder} cannot be read: {_reason(error)}") from error
    return fits


def _may_start_anew(value: Part | Tensor) -> bool:
    return isinstance(value, Part) and value.may_start_anew


def _is_alike(value: Part | Tensor, stored: object) -> bool:
    return isinstance(stored, TensorStorageMetadata) and stored.size == value.size()


def _check_contents(point: ResumePoint, group: Group) -> None:
    problems_of_ranks: list[Any] = [None] * group.size()
    with pause_recording():
        dist.all_gather_object(
            problems_of_ranks, wrong_contents(point, group.rank(), group.size()), group=group
        )
    names = [name for names in problems_of_ranks for name in names]
    if names:
        problem = f"{names[0]} is not what was saved"
        raise CheckpointError(f"{point.folder} is damaged ({problem}); {alternative_remedy(point.folder)}")


def _root(error: BaseException) -> BaseException:
    """The system's error behind torch's: on a full disk that one only tells of a position."""
    inner: BaseException | None = error
    while inner is not None and not isinstance(inner, OSError):
        inner = inner.__cause__ or inner.__context__
    return inner or error


def _reason(error: CheckpointException) -> str:
    cause = next((cause for cause, _ in error.failures.values()), error)
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return f"{type(cause).__name__}: {(str(cause).strip().splitlines() or [''])[0]}"
