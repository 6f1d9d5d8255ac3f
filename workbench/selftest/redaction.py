"""Takes out of evidence what is nobody's business: names of users and hosts, home folders, addresses, and the values of
environment variables that are not on the checked list. Pure but for what it learns of this machine.
"""

from __future__ import annotations

import getpass
import ipaddress
import json
import os
import pwd
import re
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from engine.config.environment import VARIABLES

#: The document in which what looks like an address is none.
VERSIONS = "versions.json"
#: Variables whose values may be told.
CHECKED = frozenset(known.name or name for name, known in VARIABLES.items())
#: Beginnings of the names of variables that act on ranks; those not on the list are told without their values.
_OURS = ("NCCL_", "GLOO_", "CUDA_", "PYTORCH_", "OMP_", "TORCH_", "MALLOC_", "MKL_", "KMP_", "NVIDIA_")
_SECRET = re.compile(r"TOKEN|SECRET|PASS|CREDENTIAL|AUTH|KEY|COOKIE|SESSION", re.IGNORECASE)
#: Values shorter than these are words like any other.
_SHORTEST, _SHORTEST_SECRET, _SHORTEST_NUMBER = 6, 3, 10
#: Up to this length a literal is only replaced where it is a word of its own.
_WORD = 12
_NOT_PRIVATE = frozenset({"root", "localhost", "localhost.localdomain", ""})
_UUID = re.compile(r"\b(GPU|MIG)-[0-9a-fA-F]{8}-[0-9a-fA-F-]{4,}")
_HOMES = re.compile(r"(/home|/Users)/[^/\s\"'<>:,;]+")
_ASSIGNED = re.compile(r"\b([A-Z][A-Z0-9_]{2,})(=| set by environment to )([^\s\"',;]+)")
_ADDRESS = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
#: Keys of documents that are about this machine's processes only.
_DROPPED = frozenset({"owner", "rank_pids"})


def is_ours(name: str) -> bool:
    """Whether a variable is one that acts on ranks."""
    return name.startswith(_OURS)


class Redactor:
    """Replaces; the same thing by the same words. ``hosts``: names and addresses of hosts may stay.

    ``variables`` and ``names`` (what to replace -> its words) are this process's and this machine's unless given.
    """

    def __init__(
        self,
        hosts: bool = False,
        variables: Mapping[str, str] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self._hosts = hosts
        self._variables = dict(os.environ if variables is None else variables)
        words = {**_values(self._variables), **(names_here(hosts) if names is None else names)}
        self._words = {word: replacement for word, replacement in words.items() if word not in _NOT_PRIVATE}
        self._pattern = _any_of(self._words)
        self._uuids: dict[str, str] = {}

    def text(self, text: str, addresses: bool = True) -> str:
        """A text without what is private; without ``addresses`` only those of this machine are taken out, since
        versions can look like those of others.
        """
        for hide in (self._hide_assignments, self._hide_known_words, self._hide_homes, self._hide_gpus):
            text = hide(text)
        return _ADDRESS.sub(_hide_private, text) if addresses and not self._hosts else text

    def tree(self, value: Any, addresses: bool = True) -> Any:
        """A document of plain values."""
        if isinstance(value, str):
            return self.text(value, addresses)
        if isinstance(value, Mapping):
            return {
                self.text(str(key), addresses): self.tree(item, addresses)
                for key, item in value.items()
                if key not in _DROPPED
            }
        return [self.tree(item, addresses) for item in value] if isinstance(value, list | tuple) else value

    def file(self, name: str, data: bytes) -> str:
        """What may be kept of a file: a JSON document stays one."""
        text = data.decode("utf-8", errors="replace")
        if name.endswith(".json"):
            try:
                return json.dumps(self.tree(json.loads(text), name != VERSIONS), indent=1) + "\n"
            except ValueError:
                pass  # half a document is a text like any other
        return self.text(text)

    def _hide_assignments(self, text: str) -> str:
        def hide(match: re.Match[str]) -> str:
            name, separator, _ = match.groups()
            private = name not in CHECKED and (name in self._variables or is_ours(name))
            return f"{name}{separator}<not told>" if private else match[0]

        return _ASSIGNED.sub(hide, text)

    def _hide_known_words(self, text: str) -> str:
        return self._pattern.sub(lambda match: self._words[match[0]], text) if self._pattern else text

    def _hide_homes(self, text: str) -> str:
        return _HOMES.sub(r"\1/<user>", text)

    def _hide_gpus(self, text: str) -> str:
        def number(match: re.Match[str]) -> str:
            kind = match[1]
            replacement = f"{kind}-00000000-0000-0000-0000-{len(self._uuids) + 1:012d}"
            return self._uuids.setdefault(match[0], replacement)

        return _UUID.sub(number, text)


def names_here(hosts: bool = False) -> dict[str, str]:
    """Names and folders of this machine, and what to say instead."""
    replacements = {str(path): replacement for path, replacement in _folders() if path != Path("/")}
    replacements |= dict.fromkeys(_users(), "<user>")
    return replacements if hosts else replacements | dict.fromkeys(_host_names(), "<host>") | _addresses()


def _folders() -> Iterator[tuple[Path, str]]:
    yield Path(tempfile.gettempdir()), "<tmp>"
    yield Path(__file__).parent.parent.parent, "<workbench>"
    yield Path.cwd(), "<here>"
    yield Path(sys.prefix), "<python>"
    yield Path.home(), "<home>"
    yield Path(pwd.getpwuid(os.getuid()).pw_dir) if _has_account() else Path("/"), "<home>"


def _users() -> Iterator[str]:
    for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER"):
        yield os.environ.get(name, "")
    if _has_account():
        account = pwd.getpwuid(os.getuid())
        yield account.pw_name
        yield account.pw_gecos.partition(",")[0]
        yield getpass.getuser()


def _has_account() -> bool:
    try:
        return bool(pwd.getpwuid(os.getuid()))
    except KeyError:  # a container may run as a number without a name
        return False


def _host_names() -> Iterator[str]:
    for name in (socket.gethostname(), os.uname().nodename, os.environ.get("HOSTNAME", "")):
        yield name
        yield name.partition(".")[0]


def _addresses() -> dict[str, str]:
    """Of this machine's interfaces, but loopback's."""
    addresses = [
        address.address.partition("%")[0]
        for interface in psutil.net_if_addrs().values()
        for address in interface
    ]
    private = [address for address in addresses if len(address) > 3 and not _is_harmless(address)]
    return dict.fromkeys(private, "<address>")


def _is_harmless(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address == "00:00:00:00:00:00"
    return parsed.is_loopback or parsed.is_unspecified


def _hide_private(match: re.Match[str]) -> str:
    try:
        address = ipaddress.ip_address(match[0])
    except ValueError:
        return match[0]
    return "<address>" if address.is_private and not _is_harmless(match[0]) else match[0]


def _values(variables: Mapping[str, str]) -> dict[str, str]:
    """Values of variables that are not on the list, and lines of those, with what to say instead."""
    values: dict[str, str] = {}
    for name, whole in variables.items():
        secret = _SECRET.search(name) is not None
        for value in (whole, *whole.splitlines()) if name not in CHECKED else ():
            number = value.replace(".", "").isdecimal()
            shortest = _SHORTEST_SECRET if secret else _SHORTEST_NUMBER if number else _SHORTEST
            if len(value) >= shortest:
                json_text = json.dumps(value)[1:-1]
                values |= {value: f"<value of {name}>", json_text: f"<value of {name}>"}
    return values


def _any_of(words: Mapping[str, str]) -> re.Pattern[str] | None:
    """The longest first; short ones only as words of their own."""
    by_length = sorted((word for word in words if word), key=len, reverse=True)
    if not by_length:
        return None
    return re.compile("|".join(_as_pattern(word) for word in by_length))


def _as_pattern(word: str) -> str:
    return re.escape(word) if len(word) > _WORD else rf"(?<!\w){re.escape(word)}(?!\w)"
