"""Where a rank's part of a parameter lies in the undivided model. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Extent:
    """A rank's local tensor of ``sizes`` begins at ``offsets`` in the whole parameter of ``shape``; a piece of it
    begins at element ``start`` of the flattened local tensor.
    """

    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    start: int = 0

    def beginning_at(self, start: int) -> Extent:
        """The same for a piece that begins at another element."""
        return replace(self, start=start)


def extent_of(sizes: tuple[int, ...], splits: dict[int | None, tuple[int, int]]) -> Extent:
    """A local tensor that is cut evenly: dimension -> (number of parts, which one); None cuts nothing."""
    parts = [splits.get(dim, (1, 0)) for dim in range(len(sizes))]
    return Extent(
        tuple(size * count for size, (count, _) in zip(sizes, parts, strict=True)),
        tuple(size * place for size, (_, place) in zip(sizes, parts, strict=True)),
        sizes,
    )
