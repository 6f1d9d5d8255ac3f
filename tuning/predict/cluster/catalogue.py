"""Accelerators and clusters by name, from ``data/``, each figure with its source; what is missing is not made up."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from engine.config.errors import InputError
from tuning.predict.cluster import cluster_file
from tuning.predict.cluster.csv_table import DATA, read
from tuning.predict.model.hardware import FORMATS, Accelerator, Cluster

_RATE = "peak_flops."


_Figures = dict[str, tuple[float, str]]


@functools.cache
def _figures() -> dict[str, _Figures]:
    """Value and source of each figure, by accelerator."""
    sheet = read(DATA / "accelerators.csv")
    figures: dict[str, _Figures] = {}
    for row, value in zip(sheet.rows, sheet.numbers("value").tolist(), strict=True):
        figures.setdefault(row["accelerator"], {})[row["figure"]] = value, row["source"]
    return figures


def _accelerator(name: str, figures: _Figures) -> Accelerator:
    for figure in ("memory_bytes", "memory_bandwidth"):
        if figure not in figures:
            raise InputError(f"{name}.{figure}", None, cluster_file.NO_SOURCE)
    rates = {
        figure.removeprefix(_RATE): value
        for figure, (value, _) in figures.items()
        if figure.startswith(_RATE)
    }
    sources = {figure: source for figure, (_, source) in figures.items()}
    shares = {figure: figures[figure][0] for figure in ("products", "attention") if figure in figures}
    size, bandwidth = int(figures["memory_bytes"][0]), figures["memory_bandwidth"][0]
    return Accelerator(name, rates, size, bandwidth, sources, **shares)


@functools.cache
def _clusters() -> dict[str, dict[str, Any]]:
    return cluster_file.tree(DATA / "clusters.toml")


def names() -> tuple[str, ...]:
    """Clusters that ``cluster`` knows."""
    return tuple(_clusters())


def accelerators() -> tuple[str, ...]:
    """Accelerators that ``accelerator`` knows."""
    return tuple(_figures())


def accelerator(name: str) -> Accelerator:
    """One by its name.

    Raises:
        InputError: the catalogue does not have it, or lacks a figure; a CPU is measured, not listed.
    """
    figures = _figures()
    if name in figures:
        return _accelerator(name, figures[name])
    if "cpu" in name.lower():
        raise InputError("accelerator", name, "is measured, not listed: run `workbench calibrate`")
    raise InputError("accelerator", name, f"unknown; choose one of {', '.join(figures)}")


def peak_flops(chip: Accelerator, form: str) -> float:
    """Dense FLOP/s in a format.

    Raises:
        InputError: there is no such format, or no figure for it.
    """
    if form in chip.peak_flops:
        return chip.peak_flops[form]
    if form not in FORMATS:
        raise InputError("format", form, f"unknown; choose one of {', '.join(FORMATS)}")
    raise InputError(
        f"{chip.name}.{_RATE}{form}", None, f"there is no figure; it has {', '.join(chip.peak_flops)}"
    )


def cluster(name: str, nodes: int = 1) -> Cluster:
    """One by its name, with so many nodes.

    Raises:
        InputError: the catalogue does not have it, or not all the figures that so many nodes need.
    """
    clusters = _clusters()
    if name not in clusters:
        remedy = f"unknown; choose one of {', '.join(clusters)}, or give a file of your own"
        raise InputError("cluster", name, remedy)
    file = cluster_file.parse(clusters[name] | {"name": name})
    return cluster_file.build(file, accelerator, DATA, nodes)


def read_cluster(path: Path, nodes: int | None = None) -> Cluster:
    """A person's own, from a TOML file with the keys of ``ClusterFile``.

    Raises:
        InputError: the file cannot be read, holds an unknown key, or lacks a figure.
    """
    file = cluster_file.parse({"name": path.stem} | cluster_file.tree(path))
    return cluster_file.build(file, accelerator, path.parent, nodes)
