"""MASHA and its rivals in numpy, all workers in one process: of the engine only the functions, and random places."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.model.workloads.published.saddle import Quadratics

Vector = np.ndarray[Any, np.dtype[np.float64]]


class Reference:
    """Workers with equal shares of the functions, and a server."""

    def __init__(self, data: Quadratics, workers: int, method: str, share: float, refresh: float) -> None:
        samples = data.training(0, data.functions)
        each = np.split(samples[0].numpy(), workers)
        self.solution = samples[1][0].numpy()
        eye, d = data.penalty * np.eye(data.unknowns), data.unknowns
        means = [one.mean(axis=0) for one in each]
        self.matrices = [np.block([[eye, one[:, :-2]], [-one[:, :-2].T, eye]]) for one in means]
        self.constants = [np.concatenate([one[:, -2], -one[:, -1]]) for one in means]
        self.method, self.share, self.refresh, self.seed = method, share, refresh, data.seed
        self.z = np.zeros(2 * d)
        self.rests, self.server_rest = [np.zeros(2 * d) for _ in each], np.zeros(2 * d)
        self.reference: Vector | None = None

    @property
    def distance(self) -> float:
        return float(np.linalg.norm(self.z - self.solution) / np.linalg.norm(self.solution))

    def operators(self, z: Vector) -> list[Vector]:
        return [matrix @ z + constant for matrix, constant in zip(self.matrices, self.constants, strict=True)]

    def mean(self, z: Vector) -> Vector:
        return np.mean(self.operators(z), axis=0)

    def step(self, number: int, rate: float) -> None:
        if self.method.startswith("masha"):
            self._masha(number, rate)
        else:
            half = self.z - rate * self._compressed(self.operators(self.z), 2 * number)
            self.z = self.z - rate * self._compressed(self.operators(half), 2 * number + 1)

    def _masha(self, number: int, rate: float) -> None:
        if self.reference is None:
            self.reference = self.z
        w = self.reference
        half = (1 - self.refresh) * self.z + self.refresh * w - rate * self.mean(w)
        pairs = zip(self.operators(half), self.operators(w), strict=True)
        self.z = half - self._compressed([rate * (one - known) for one, known in pairs], number)
        if np.random.default_rng([self.seed, number, 1]).random() < self.refresh:
            self.reference = self.z

    def _compressed(self, vectors: list[Vector], turn: int) -> Vector:
        if self.method == "plain":
            return np.mean(vectors, axis=0)
        there = [self._kept(one, turn, worker) for worker, one in enumerate(vectors)]
        return self._kept(np.mean(there, axis=0), turn, -2)

    def _kept(self, x: Vector, turn: int, sender: int) -> Vector:
        count, out = max(1, round(self.share * len(x))), np.zeros_like(x)
        if self.method in ("masha1", "naive_random"):
            places = np.random.default_rng([self.seed, turn, sender + 2]).permutation(len(x))[:count]
            out[places] = x[places] * len(x) / count
            return out
        rest = self.server_rest if sender < 0 else self.rests[sender]
        whole = x + rest
        places = np.argsort(-abs(whole), kind="stable")[:count]
        out[places] = whole[places]
        if self.method == "masha2":
            rest[:] = whole - out
        return out
