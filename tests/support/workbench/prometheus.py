"""A real Prometheus server that scrapes one endpoint, and its HTTP API."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.waiting import wait_until


def _program(name: str) -> str | None:
    """Beside this Python, where ``make test`` puts it, or anywhere on the path."""
    return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)


SERVER, TOOL = _program("prometheus"), _program("promtool")
_GET = "on this machine (`make prometheus` gets Debian's; elsewhere see prometheus.io/download)"
WHY_NONE = None if SERVER else f"no prometheus {_GET}"
WHY_NO_TOOL = None if TOOL else f"no promtool {_GET}"

CONFIG = """
global:
  scrape_interval: 250ms
scrape_configs:
  - job_name: workbench
    static_configs:
      - targets: ["{target}"]
"""


class Server:
    """The API of a server that runs."""

    def __init__(self, address: str) -> None:
        self._address = address

    def up(self) -> bool:
        """Whether it answers queries."""
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://{self._address}/-/ready", timeout=5).close()
            return True
        return False

    def query(self, promql: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Labels (sorted, without the scrape's own) -> the value now."""
        asked = urllib.parse.urlencode({"query": promql})
        with urllib.request.urlopen(f"http://{self._address}/api/v1/query?{asked}", timeout=5) as answer:
            found = json.load(answer)
        assert found["status"] == "success"
        return {_labels(row["metric"]): float(row["value"][1]) for row in found["data"]["result"]}

    def value(self, promql: str) -> float | None:
        """The one value of a query; None if there is no series yet."""
        found = self.query(promql)
        assert len(found) < 2, found
        return next(iter(found.values()), None)


def _labels(metric: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(
        sorted((name, value) for name, value in metric.items() if name not in ("job", "instance", "__name__"))
    )


@contextlib.contextmanager
def scraping(target: str, folder: Path, port: int) -> Iterator[Server]:
    """A server that fetches ``target`` (host:port) four times a second and keeps what it got in ``folder``."""
    config = folder / "prometheus.yml"
    config.write_text(CONFIG.format(target=target), "utf-8")
    address = f"127.0.0.1:{port}"
    command = [str(SERVER), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
               f"--web.listen-address={address}", "--log.level=warn"]  # fmt: skip
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        server = Server(address)
        assert wait_until(server.up, 30.0), (folder / "prometheus.log").read_text()
        yield server
    finally:
        process.terminate()
        process.wait(20)
