"""``metrics``: a Prometheus endpoint over the runs of a home folder.

``ui``: the page in a browser.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.commands.options import Home

if TYPE_CHECKING:
    from subprocess import Popen

    from tuning.execution.signals import Interruption
    from workbench.services.jobs import Job
    from workbench.services.page_server import ServerAddress

_POLL_SECONDS = 0.2
_MISSING = "needs the package prometheus-client; install it with: pip install 'training-workbench[metrics]'"


def metrics(
    home: Home,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 picks a free one.")
    ] = 9469,
    host: Annotated[
        str,
        typer.Option("--host", help="Address to listen on; 127.0.0.1 is reachable from this machine only."),
    ] = "127.0.0.1",
    keep: Annotated[
        float, typer.Option("--keep", min=0.0, help="Seconds for which a run is still served after its end.")
    ] = 300.0,
) -> int:
    """Serve steps, collectives, memory, GPUs and host of all running runs to a Prometheus server, until Ctrl-C."""
    from engine.config.errors import InputError
    from tuning.execution.signals import Interruption
    from workbench.services import access
    from workbench.text.output import say

    needs_token = not access.is_local(host) or access.TOKEN_VARIABLE in os.environ
    token = access.token_from_environment() if needs_token else None
    try:
        from workbench.metrics.endpoint import Endpoint
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "prometheus_client":
            raise
        raise InputError("metrics", "prometheus_client", _MISSING) from None
    with Interruption() as interruption, Endpoint(home, host, port, say, keep, token) as endpoint:
        print(f"Metrics of the runs in {home} are at {endpoint.url}. Ctrl-C ends it.", flush=True)
        if token is not None:
            print(f"It asks for Authorization: Bearer {access.reader_token(token)}", flush=True)
        while not interruption.seen:
            time.sleep(_POLL_SECONDS)
    return 0


_CLOSED = "the dashboard is closed; studies that were started from it keep running"
#: What the demo study and the page may take to end.
_PATIENCE_SECONDS, _PAGE_SECONDS = 20.0, 5.0


def ui(
    home: Home,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port of the dashboard.")] = 8501,
    address: Annotated[
        str,
        typer.Option(
            "--address", help="Address to listen on; 127.0.0.1 is reachable from this machine only."
        ),
    ] = "127.0.0.1",
    token: Annotated[
        bool,
        typer.Option(
            "--token", help="Ask for a token at 127.0.0.1 too, where other users share this machine."
        ),
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", help="Another name under which browsers ask for it, as behind a proxy."),
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Also start the demo study; it ends with the dashboard.")
    ] = False,
) -> int:
    """Open the dashboard: runs, live profiles, studies, export. Ctrl-C closes it; its studies keep running."""
    from engine.run import child_process
    from tuning.execution.signals import Interruption
    from workbench.services import access, page_server
    from workbench.services.jobs import new_folder

    needs_token = token or not access.is_local(address) or access.TOKEN_VARIABLE in os.environ
    place = page_server.ServerAddress(
        address, port, access.token_from_environment() if needs_token else None, tuple(allow_host or ())
    )
    page_server.check_free(place)
    _warn(place, home)
    log = new_folder(home) / "page.log"
    with Interruption() as interruption:
        page = page_server.start(place, home, log)
        try:
            if not page_server.wait_until_up(place, page):
                return _report_failure(log, interruption)
            return _serve(home, place, page, demo, interruption)
        finally:
            child_process.end(page, _PAGE_SECONDS)


def _warn(place: ServerAddress, home: Path) -> None:
    """What is exposed by listening beyond this machine."""
    from workbench.home.control import command_author
    from workbench.services import access
    from workbench.text.output import say

    if access.is_local(place.address):
        return
    say(
        f"warning: the page listens at {place.address}:{place.port}, beyond this machine. Whoever has the first link "
        f"starts and stops training as {command_author().partition(',')[0]}, reads every run in {home} and any text "
        "file a data path names; the second link only shows. Nothing is encrypted: use a network you trust, a proxy "
        "with TLS, or 127.0.0.1 and ssh -L"
    )


def _serve(
    home: Path, place: ServerAddress, page: Popen[bytes], demo: bool, interruption: Interruption
) -> int:
    from workbench.text.output import say

    study, job = _start_demo(home) if demo else ("", None)
    try:
        study_text = f", study {study} on the Tune and Live pages" if study else ""
        print(f"The page is at {place.url}{study_text}. Runs are in {home}. Ctrl-C ends it.", flush=True)
        if place.token is not None:
            print(f"To steer:     {place.link}\nOnly to look: {place.reader_link}", flush=True)
        while page.poll() is None and not interruption.seen:
            time.sleep(_POLL_SECONDS)
            job = _check_demo(job, study)
    finally:
        _stop_demo(job, study)
    if interruption.seen:
        say(_CLOSED)
    else:
        say(f"error: the page ended unexpectedly with exit code {page.returncode}")
    return 0 if interruption.seen else 1


def _start_demo(home: Path) -> tuple[str, Job | None]:
    from workbench.services import demo
    from workbench.text.output import say

    name, job = demo.start(home)
    say(f"study {name} is already running; showing it" if job is None else f"study {name} started")
    return name, job


def _check_demo(job: Job | None, study: str) -> Job | None:
    """Tell once how the demo study ended; afterwards there is nothing to stop."""
    from workbench.services import jobs
    from workbench.text.output import say

    if job is None or job.alive:
        return job
    for line in jobs.last_lines(job.log, 3):
        say(f"{study}: {line}")
    return None


def _stop_demo(job: Job | None, study: str) -> None:
    from workbench.services import jobs
    from workbench.text.output import say

    if job is not None and job.alive:
        say(f"stopping study {study}; the same command continues it")
        jobs.end(job, _PATIENCE_SECONDS)


def _report_failure(log: Path, interruption: Interruption) -> int:
    from workbench.services.jobs import last_lines
    from workbench.text.output import say

    if interruption.seen:
        return 0
    last = next(iter(last_lines(log, 1)), "it printed nothing")
    say(f"error: the page did not start: {last} (all of it: {log})")
    return 1
