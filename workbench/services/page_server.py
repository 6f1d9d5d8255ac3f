"""Starts the page as a child process: where its script is, a free port, and what keeps it safe: flags and a token."""

from __future__ import annotations

import errno
import functools
import ipaddress
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from engine.config.errors import InputError
from engine.run import child_process
from workbench.home.settings import HOME_VARIABLE
from workbench.services import access

START_SECONDS = 60.0
_LAST_PORT = 65_535
_TAKEN = errno.EADDRINUSE
_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where the page listens; ``token`` is what it asks for, None where all programs of this machine may use it."""

    address: str
    port: int
    token: str | None = None
    #: More names under which browsers may ask for it.
    hosts: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """What to open in a browser on this machine."""
        is_any_address = self.address in ("0.0.0.0", "::")
        host = "127.0.0.1" if is_any_address else f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{host}:{self.port}"

    @property
    def link(self) -> str:
        """What to open in a browser that may be on another machine, with the token that lets one steer."""
        return self.url if self.token is None else access.link(self._reachable, self.token)

    @property
    def reader_link(self) -> str:
        """The same for somebody who may only look."""
        return (
            self.url if self.token is None else access.link(self._reachable, access.reader_token(self.token))
        )

    @property
    def _reachable(self) -> str:
        is_any_address = self.address in ("0.0.0.0", "::")
        return f"http://{socket.gethostname()}:{self.port}" if is_any_address else self.url


def script() -> Path:
    """The page's script: beside the package in a checkout, else where the module ``app`` is installed.

    Raises:
        InputError: there is none.
    """
    import importlib.util

    path = Path(__file__).parents[2] / "app.py"
    if path.is_file():
        return path
    spec = importlib.util.find_spec("app")
    if spec is None or spec.origin is None:
        raise InputError("app.py", None, "is not beside the package; install the workbench again")
    return Path(spec.origin)


def check_free(place: ServerAddress) -> None:
    """Refuse a port that cannot be had, before anything starts.

    Raises:
        InputError: the port is taken or not allowed, or the address is none of this machine's.
    """
    problem = _bind_problem(place)
    if problem is None:
        return
    if problem.errno in _NO_SUCH_ADDRESS or isinstance(problem, socket.gaierror):
        raise InputError("--address", place.address, "is no address of this machine; use 127.0.0.1")
    reason = (
        "is taken by another program" if problem.errno == _TAKEN else f"cannot be used ({problem.strerror})"
    )
    free = next(
        (
            port
            for port in _ports_above(place.port)
            if _bind_problem(ServerAddress(place.address, port)) is None
        ),
        None,
    )
    raise InputError("--port", place.port, f"{reason}; give --port {free or 0}")


def start(place: ServerAddress, home: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start the page; its output goes to ``log``."""
    with log.open("ab") as output:
        return child_process.start(
            ["-m", "streamlit", "run", str(script()), *_flags(place)],
            stdout=output,
            stderr=output,
            variables={HOME_VARIABLE: str(home), "PYTHONUNBUFFERED": "1"}
            | ({} if place.token is None else {access.TOKEN_VARIABLE: place.token}),
        )


@functools.cache
def rules() -> access.Rules:
    """In the page's own process: whom it answers, by Streamlit's settings.

    The token leaves the environment: what the page starts has no use for it. Once it is gone nobody may read it
    again, hence the cache. A page that was started without the command line prints its link itself.
    """
    import streamlit as st

    address, port = st.get_option("server.address") or "0.0.0.0", int(st.get_option("server.port"))
    has_token = os.environ.get(access.TOKEN_VARIABLE) is not None
    token = access.token_from_environment() if has_token or not access.is_local(address) else None
    os.environ.pop(access.TOKEN_VARIABLE, None)
    place = ServerAddress(address, port, token)
    if token is not None and not has_token:
        print(f"The page is at {place.link}", flush=True)
    return access.Rules.from_hosts(
        [*st.get_option("server.allowedHosts"), *allowed_hosts(address)], token, port
    )


def wait_until_up(place: ServerAddress, process: subprocess.Popen[bytes]) -> bool:
    """Whether the page answers; False if it ended or took longer than ``START_SECONDS``."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if _answers(f"{place.url}/_stcore/health"):
            return True
        time.sleep(0.1)
    return False


def _flags(place: ServerAddress) -> list[str]:
    options = {
        "server.address": place.address,
        "server.port": str(place.port),
        "server.headless": "true",
        "server.fileWatcherType": "none",
        "browser.gatherUsageStats": "false",
        "browser.serverAddress": "localhost",
        "client.toolbarMode": "minimal",
    }
    flags = [f"--{name}={value}" for name, value in options.items()]
    hosts = dict.fromkeys([*allowed_hosts(place.address), *place.hosts])
    return flags + [f"--server.allowedHosts={host}" for host in hosts]


def allowed_hosts(address: str) -> list[str]:
    """Names under which a browser may ask for the page; others are refused, against DNS rebinding."""
    local = ["localhost", "127.0.0.1"]
    try:
        listens = ipaddress.ip_address(address)
    except ValueError:
        return [*local, address]
    if listens.is_loopback:
        return list(dict.fromkeys([*local, address]))
    names = [socket.gethostname(), socket.getfqdn()]
    addresses = _own_addresses() if listens.is_unspecified else [address]
    return list(dict.fromkeys([*local, *names, *addresses]))


def _own_addresses() -> list[str]:
    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    addresses = [
        item for items in psutil.net_if_addrs().values() for item in items if item.family in families
    ]
    return [item.address.partition("%")[0] for item in addresses]


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _bind_problem(place: ServerAddress) -> OSError | None:
    family = socket.AF_INET6 if ":" in place.address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((place.address, place.port))
        except OSError as error:
            return error
    return None


def _ports_above(port: int) -> range:
    return range(port + 1, min(port + 50, _LAST_PORT) + 1)
