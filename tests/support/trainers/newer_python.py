"""Gives Python 3.11 the one name of 3.12 that Megatron's wheel asks for; imported before it."""

from __future__ import annotations

import typing

import typing_extensions

if not hasattr(typing, "override"):
    typing.override = typing_extensions.override  # type: ignore[attr-defined]
