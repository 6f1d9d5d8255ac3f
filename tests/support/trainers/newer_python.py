"""Gives Python 3.11 the one name of 3.12 that Megatron's wheel asks for; imported before it."""

from __future__ import annotations

import typing

import typing_extensions

GIVEN = () if hasattr(typing, "override") else ("override",)
for name in GIVEN:
    setattr(typing, name, getattr(typing_extensions, name))
