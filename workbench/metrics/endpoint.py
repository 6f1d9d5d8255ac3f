"""The endpoint itself: what a Prometheus server fetches, over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from engine.config.errors import InputError
from workbench.metrics.families import families
from workbench.metrics.follow import KEEP_SECONDS, Follower
from workbench.services.access import bearer_only


class RunCollector(Collector):
    """Reads on in the runs of a home at each scrape; ``tell`` gets each problem in one line, once."""

    def __init__(self, home: Path, tell: Callable[[str], None], keep_seconds: float = KEEP_SECONDS) -> None:
        self._follower = Follower(home, keep_seconds)
        self._tell = tell
        self._told: set[str] = set()
        self._lock = Lock()

    def collect(self) -> Iterator[Metric]:
        """Every metric of every run that is followed now."""
        with self._lock:
            runs = self._follower.runs()
            metrics = list(families(runs))
            problems = {problem for run in runs for problem in run.problems}
            for problem in sorted(problems - self._told):
                self._tell(problem)
            self._told |= problems
        yield from metrics


class Endpoint:
    """``with Endpoint(...) as endpoint:`` answers at ``endpoint.url`` from a thread."""

    def __init__(
        self,
        home: Path,
        host: str,
        port: int,
        tell: Callable[[str], None],
        keep_seconds: float = KEEP_SECONDS,
        token: str | None = None,
    ) -> None:
        """Begins to listen; port 0 takes any free one. With ``token`` it answers only to who sends it.

        Raises:
            InputError: the place is taken or not ours.
        """
        registry = CollectorRegistry()
        registry.register(RunCollector(home, tell, keep_seconds))
        try:
            started: tuple[Any, Thread] = start_http_server(port, host, registry)
        except OSError as error:
            place = f"{host}:{port}"
            remedy = f"cannot be listened at ({error.strerror}); give another --port or --host"
            raise InputError("--port", place, remedy) from None
        self._server, self._thread = started
        if token is not None:
            self._server.set_app(bearer_only(self._server.get_app(), token))
        self.url = f"http://{host}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Ends the thread and frees the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
