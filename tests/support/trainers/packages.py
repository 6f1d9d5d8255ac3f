"""What a trainer's own code is asked with: an environment for each, or one for several that get along."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Environment:
    """Packages that pip is given; torch and what it brings is this project's.

    Of those ``alone`` dependencies are left out: parsing needs none of them. ``newer`` is a wheel of a newer Python,
    and which: it is unpacked, for pip offers older ones. ``build`` is Python that compiles what would be compiled at
    the first use: an interrupted build leaves a lock that later ones wait for without end, so it is part of making the
    environment, in a folder of its own.
    """

    name: str
    packages: tuple[str, ...]
    alone: tuple[str, ...] = ()
    newer: tuple[str, str] | None = None
    build: str = ""
