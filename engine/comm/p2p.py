"""Sending to one rank and receiving from another at once, as a ring does at every hop."""

from __future__ import annotations

from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor

from engine.comm.channel import Channel, Message
from profilers.collectives.recorder import active_recorder, unrecorded


class Hop(NamedTuple):
    """Two messages under way, one in each direction."""

    sent: Message
    received: Message

    def wait(self) -> Tensor:
        """What arrived, once the other message has left, too."""
        recorder = active_recorder()
        if recorder is None:
            self.sent.wait()
            return self.received.wait()
        begin = recorder.mark()
        self.sent.wait()
        arrived = self.received.wait()
        recorder.note((begin, recorder.mark(), None))
        return arrived


def start_hop(channel: Channel, x: Tensor, target: int, into: Tensor, source: int) -> Hop:
    """Start sending ``x`` to a member of the group, and receiving a contiguous ``into`` from one.

    NCCL runs the calls between two ranks one after the other and each waits for its peer; both of a group of two are
    such calls. There they are posted as one batch, which it runs as one. On gloo neither waits, and the receive comes
    first: it sends its peer a note that it is ready, which would wait behind a long message on the same connection, so
    that of two opposing messages the second would begin where the first ends.
    """
    if channel.batches:
        return start_batched(channel, x, target, into, source)
    received = channel.receive(into, source)
    return Hop(channel.send(x, target), received)


def start_batched(channel: Channel, x: Tensor, target: int, into: Tensor, source: int) -> Hop:
    """The same as one batch, on any backend."""
    recorder, group = active_recorder(), channel.group
    calls = [
        None if recorder is None else recorder.issue(name, group, payload)
        for name, payload in (("send", x), ("recv", into))
    ]
    messages = [
        dist.P2POp(dist.isend, x, group=group, group_peer=target),
        dist.P2POp(dist.irecv, into, group=group, group_peer=source),
    ]
    with unrecorded():  # torch's operators would be recorded a second time
        works = dist.batch_isend_irecv(messages)
    return Hop(Message(x, works[0], calls[0]), Message(into, works[-1], calls[1]))
