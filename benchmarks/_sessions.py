"""Browsers without a screen: the client's half of Streamlit's protocol, so that a server is asked as by browsers.

Ten real ones draw on the cores that are measured, and then wait for each other.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def others(address: str, page: str, query: str, count: int) -> Iterator[None]:
    """So many sessions at a page of the server, in a process of their own."""
    if not count:
        yield
        return
    process = multiprocessing.get_context("spawn").Process(
        target=_run, args=(address, page, query, count), daemon=True
    )
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def _run(address: str, page: str, query: str, count: int) -> None:
    async def all_of_them() -> None:
        await asyncio.gather(*(_session(address, page, query) for _ in range(count)))

    asyncio.run(all_of_them())


async def _session(address: str, page: str, query: str) -> None:
    """Asks for the page, then for each fragment as often as the page says."""
    import websockets
    from streamlit.proto.BackMsg_pb2 import BackMsg
    from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

    stream = f"ws{address.removeprefix('http')}/_stcore/stream"
    async with websockets.connect(
        stream, origin=address, subprotocols=["streamlit"], max_size=None
    ) as socket:  # type: ignore[call-overload]
        state: dict[str, Any] = {"query_string": query, "page_name": page}
        timers: dict[str, asyncio.Task[None]] = {}

        async def ask(**more: Any) -> None:
            message = BackMsg()
            for name, value in (state | more).items():
                setattr(message.rerun_script, name, value)
            await socket.send(message.SerializeToString())

        async def again(fragment: str, seconds: float) -> None:
            while True:
                await asyncio.sleep(seconds)
                await ask(fragment_id=fragment, is_auto_rerun=True)

        await ask()
        async for data in socket:
            told = ForwardMsg.FromString(data)
            kind = told.WhichOneof("type")
            if kind == "new_session":
                state["page_script_hash"] = told.new_session.page_script_hash
            elif kind == "auto_rerun" and told.auto_rerun.fragment_id not in timers:
                fragment = told.auto_rerun.fragment_id
                timers[fragment] = asyncio.create_task(again(fragment, told.auto_rerun.interval))
