"""The extra that fANOVA and SHAP need: whether it is installed, without importing it."""

from __future__ import annotations

import importlib.util
from typing import Literal

from engine.config.errors import InputError

Method = Literal["fanova", "shap"]
METHODS: tuple[Method, ...] = ("fanova", "shap")
NAMES: dict[Method, str] = {"fanova": "fANOVA", "shap": "SHAP"}
INSTALL = "pip install 'training-workbench[sensitivity]'"
_NEEDS: dict[Method, dict[str, str]] = {
    "fanova": {"sklearn": "scikit-learn"},
    "shap": {"sklearn": "scikit-learn", "shap": "shap"},
}


def missing(method: Method) -> list[str]:
    """Names of the packages that a method needs and that are not installed."""
    return [name for module, name in _NEEDS[method].items() if importlib.util.find_spec(module) is None]


def needed(method: Method) -> str:
    """One line that says what to install; empty where nothing is missing."""
    names = missing(method)
    return f"needs {' and '.join(names)}: {INSTALL}" if names else ""


def check(method: Method) -> None:
    """Refuse a method whose packages are not there.

    Raises:
        InputError: one of them is missing.
    """
    if needed(method):
        raise InputError("method", method, needed(method))
