"""``metrics``: a Prometheus endpoint over the runs of a home folder."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from workbench.commands.options import Home

_POLL_SECONDS = 0.2
_MISSING = "needs the package prometheus-client; install it with: pip install 'training-workbench[metrics]'"


def metrics(
    home: Home,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Where it listens; 0: any free port.")
    ] = 9469,
    host: Annotated[
        str, typer.Option("--host", help="Who can reach it: 127.0.0.1 is this machine only.")
    ] = "127.0.0.1",
    keep: Annotated[
        float, typer.Option("--keep", min=0.0, help="Seconds for which a run stays after its end.")
    ] = 300.0,
) -> int:
    """Serve steps, collectives, memory, GPUs and host of all running runs to a Prometheus server, until Ctrl-C."""
    from engine.config.errors import InputError
    from tuning.execution.signals import Interruption
    from workbench.output import say

    try:
        from workbench.metrics.endpoint import Endpoint
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "prometheus_client":
            raise
        raise InputError("metrics", "prometheus_client", _MISSING) from None
    with Interruption() as interruption, Endpoint(home, host, port, say, keep) as endpoint:
        print(f"Metrics of the runs in {home} are at {endpoint.url}. Ctrl-C ends it.", flush=True)
        while not interruption.seen:
            time.sleep(_POLL_SECONDS)
    return 0
