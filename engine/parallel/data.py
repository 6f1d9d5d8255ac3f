"""Data parallelism: DDP's buckets with one hook of ours, which compresses and whose function can be swapped."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from engine.channel import Group
from engine.compression.compressor import Compressor, Future, Plain
from engine.compression.named import build
from engine.config import RunConfig
from engine.parallel.replica import run_backward
from engine.workloads.decoder import Decoder
from profilers.step_timer import StepTimer


class DataParallel:
    """DDP used as a reducer: forwards never arm it, only the step's last backward does.

    That is what lets it sit under a pipeline, whose forwards of later micro-batches run before earlier
    backwards. Sent per step: one all-reduce per bucket, in total 4 bytes a parameter without compression.
    """

    def __init__(self, decoder: Decoder, group: Group, config: RunConfig, timer: StepTimer) -> None:
        self.decoder = decoder
        self._timer = timer
        self._start_step = config.compression.start_step
        self._plain: Compressor = Plain(group)
        self._compressor: Compressor = build(config.compression, group)
        self._waiting = False
        on_gpu = next(decoder.parameters()).is_cuda
        self._ddp = DistributedDataParallel(
            decoder,
            process_group=group,
            device_ids=[torch.cuda.current_device()] if on_gpu else None,
            bucket_cap_mb=config.overlap.bucket_mb,
            gradient_as_bucket_view=True,
        )
        # DDP inspects the signature; a postponed annotation would be refused.
        self._ddp.register_comm_hook(None, lambda state, bucket: self._reduce(bucket))

    def forward(self, x: Tensor) -> Tensor:
        """The stage's output."""
        with self._ddp.no_sync():
            out: Tensor = self._ddp(x)
        return out

    def backward(self, output: Tensor, gradient: Tensor | None, last: bool) -> None:
        """Backward; the last one averages bucket by bucket while it runs, then waits for what is not through."""
        if last:
            self._ddp.reducer.prepare_for_backward([])
        run_backward(output, gradient)
        if self._waiting:
            self._waiting = False
            self._timer.leave()

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """The decoder's own parameters."""
        return list(self.decoder.named_parameters())

    def _reduce(self, bucket: dist.GradBucket) -> Future:
        early = self._timer.step < self._start_step
        future = (self._plain if early else self._compressor).reduce(bucket.index(), bucket.buffer())
        if bucket.is_last():
            # All gradients are there: from here to the end of backward the main thread only waits.
            self._waiting = True
            self._timer.phase("communication_exposed").__enter__()
        return future
