"""Checks a Chrome trace against the Trace Event Format, as strictly as viewers need it."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

Event = dict[str, Any]

#: Phase of an event -> what it must have besides.
_NEEDED = {
    "M": ("args",),
    "X": ("ts", "dur", "tid"),
    "B": ("ts", "tid"),
    "E": ("ts", "tid"),
    "i": ("ts", "tid"),
    "C": ("ts", "args"),
    "s": ("ts", "tid", "id", "cat"),
    "t": ("ts", "tid", "id", "cat"),
    "f": ("ts", "tid", "id", "cat"),
}
_ABOUT = {"process_name", "process_sort_index", "process_labels", "thread_name", "thread_sort_index"}


def read(path: Path) -> dict[str, Any]:
    """The whole document."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        document: dict[str, Any] = json.load(file)
    return document


def problems(events: list[Event]) -> list[str]:
    """One line for each thing that a viewer would stumble over."""
    return [*_shapes(events), *_ends(events), *_flows(events), *_nesting(events)]


def _shapes(events: list[Event]) -> list[str]:
    found = []
    for event in events:
        needed = _NEEDED.get(event.get("ph", ""))
        if needed is None:
            found.append(f"phase {event.get('ph')!r}")
            continue
        missing = [name for name in (*needed, "name", "pid") if name not in event and event["ph"] != "E"]
        words = [event[name] for name in ("pid", "tid") if not isinstance(event.get(name, 0), int)]
        words += [event[name] for name in ("ts", "dur") if not isinstance(event.get(name, 0), int | float)]
        early = [] if words else [event[name] for name in ("ts", "dur") if event.get(name, 0) < 0]
        odd = event["ph"] == "M" and event["name"] not in _ABOUT
        if missing or words or early or odd:
            found.append(f"{event['ph']} {event.get('name')}: missing {missing}, words {words}, {early}")
    return found


def _ends(events: list[Event]) -> list[str]:
    """Each B has its E on the same thread, the last one begun first."""
    open_ones: dict[tuple[int, int], list[str]] = defaultdict(list)
    found = []
    for event in events:
        thread = event.get("pid", 0), event.get("tid", 0)
        if event.get("ph") == "B":
            open_ones[thread].append(event["name"])
        elif event.get("ph") == "E" and not open_ones[thread]:
            found.append(f"E without B on {thread}")
        elif event.get("ph") == "E":
            open_ones[thread].pop()
    return found + [f"B {names} without E on {thread}" for thread, names in open_ones.items() if names]


def _nesting(events: list[Event]) -> list[str]:
    """Of two complete events of a thread that overlap one holds the other; nanoseconds, as Perfetto keeps them."""
    threads: dict[tuple[int, int], list[tuple[int, int, str]]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "X":
            begin, end = round(event["ts"] * 1e3), round((event["ts"] + event["dur"]) * 1e3)
            threads[event["pid"], event["tid"]].append((begin, -end, event["name"]))
    found = []
    for thread, spans in threads.items():
        around: list[int] = []
        for begin, negative_end, name in sorted(spans):
            while around and around[-1] <= begin:
                around.pop()
            if around and -negative_end > around[-1]:
                found.append(f"{name} on {thread} ends after what it began in")
            around.append(-negative_end)
    return found


def _flows(events: list[Event]) -> list[str]:
    """Each flow starts once and ends within the process of its rank."""
    begun: dict[tuple[str, Any], int] = {}
    ended: set[tuple[str, Any]] = set()
    found = []
    for event in events:
        if event.get("ph") == "s":
            key = event["cat"], event["id"]
            found += [f"flow {key} begins twice"] if key in begun else []
            begun[key] = rank_of(event["pid"])
    for event in events:
        if event.get("ph") in ("t", "f"):
            key = event["cat"], event["id"]
            ended.add(key)
            if begun.get(key) != rank_of(event["pid"]):
                found.append(f"flow {key} ends in {event['pid']} and begins in {begun.get(key)}")
    return found + [f"flow {key} does not end" for key in begun if key not in ended]


def rank_of(process: int) -> int:
    """The rank that a merged trace's process belongs to."""
    return process % 10_000


def lanes(events: list[Event], process: int) -> dict[str, list[Event]]:
    """The complete events of one process by the names of its threads."""
    named = {
        event["tid"]: event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == "thread_name" and event["pid"] == process
    }
    found: dict[str, list[Event]] = {name: [] for name in named.values()}
    for event in events:
        if event["ph"] == "X" and event["pid"] == process and event["tid"] in named:
            found[named[event["tid"]]].append(event)
    return found
