"""Numbers and states as people read them: units, separators, short words, one colour per ending."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from engine.config import errors
from engine.config.layout import RANKS
from engine.run.outcome import Ending
from profilers.records import operations
from tuning.spec.objectives import text

#: A count of things: 1 rank, 2 ranks.
several = errors.several

GIB = 2**30
NOTHING = "—"
#: Of many ranks, that many are named.
_SHOWN_RANKS = 8

#: Ending or state -> colour of its badge and an icon of Streamlit's own font.
LOOKS: dict[str, tuple[str, str]] = {
    **{ending.value: (ending.facts.color, f":material/{ending.facts.icon}:") for ending in Ending},
    "running": ("blue", ":material/play_circle:"),
    "starting": ("blue", ":material/hourglass_top:"),
    "paused": ("yellow", ":material/pause_circle:"),
    "stopping": ("yellow", ":material/stop_circle:"),
    "interrupted": ("orange", ":material/link_off:"),
    "ended": ("green", ":material/check_circle:"),
    "continued": ("violet", ":material/fork_right:"),
}
_SPOKEN = {ending.value: ending.facts.phrase for ending in Ending} | {
    "communication_exposed": "exposed communication",
    "continued": "continued in another study",
}
#: By the value of train.adapt, the name that its authors gave it.
ADAPTERS = {"lora": "LoRA", "losa": "LoSA"}


def look(state: str) -> tuple[str, str]:
    """Colour and icon of an ending or a state."""
    return LOOKS.get(state, ("gray", ":material/help:"))


def ending_words(state: str | None) -> str:
    """``timed_out`` as "timed out", ``oom`` as "out of memory"."""
    return _SPOKEN.get(state or "", (state or NOTHING).replace("_", " "))


def bottleneck(name: str, axis: str | None = None) -> str:
    """``exposed_all_reduce`` on dp as "exposed all-reduce (dp)"."""
    for operation in operations.OPERATIONS:
        for key in (operation.name, operation.verdict or operation.name):
            name = name.replace(key, key.replace("_", "-"))
    return ending_words(name).replace(" bound", "-bound") + (f" ({axis})" if axis else "")


def number(value: float | None, digits: int = 0) -> str:
    """A number with thousands separators."""
    return NOTHING if value is None else f"{value:,.{digits}f}"


def loss(value: float | None) -> str:
    """With four decimals, or with three digits if these would hide it."""
    if value is None:
        return NOTHING
    return f"{value:.4f}" if value == 0 or abs(value) >= 1e-3 else f"{value:.3g}"


def seconds(value: float | None) -> str:
    """A duration in the unit that suits it: 214.3 ms, 1.24 s, 3 min 05 s, 2 h 10 min."""
    if value is None:
        return NOTHING
    if value < 1:
        return f"{value * 1e3:,.1f} ms"
    if value < 100:
        return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"
    minutes, remainder = divmod(round(value), 60)
    return f"{minutes} min {remainder:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def rough_duration(value: float) -> str:
    """A duration nobody needs to the millisecond: under a second, 12 s, 3 min 05 s."""
    return "under a second" if value < 1 else f"{value:.0f} s" if value < 100 else seconds(value)


def estimate(value: float) -> str:
    """A duration that is an estimate: under a second, about 12 s."""
    return rough_duration(value) if value < 1 else f"about {rough_duration(value)}"


def gib(size: float | None) -> str:
    """Bytes as GiB, MiB below a tenth of one, KiB below a tenth of that, and below one as they are."""
    if size is None:
        return NOTHING
    if size >= 0.1 * GIB:
        return f"{size / GIB:,.2f} GiB"
    if size >= 0.1 * 2**20:
        return f"{size / 2**20:,.1f} MiB"
    return f"{size / 2**10:,.1f} KiB" if size >= 2**10 else f"{size:,.0f} bytes"


def steps(first: int, count: int) -> str:
    """Consecutive steps by their numbers: step 12, steps 12 to 14."""
    return f"step {first:,}" if count == 1 else f"steps {first:,} to {first + count - 1:,}"


def count(value: float | None) -> str:
    """A large count: 1.4 M, 7.0 B."""
    if value is None:
        return NOTHING
    for limit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:,.1f} {letter}"
    return f"{value:,.0f}"


def ranks(numbers: Sequence[int]) -> str:
    """Ranks by their numbers, neighbours together: 0 to 3, 6."""
    remaining, parts = sorted(set(numbers)), list[str]()
    while remaining:
        last = next(
            place for place, rank in enumerate(remaining) if remaining[place + 1 : place + 2] != [rank + 1]
        )
        consecutive, remaining = remaining[: last + 1], remaining[last + 1 :]
        parts += [f"{consecutive[0]} to {consecutive[-1]}"] if len(consecutive) > 2 else map(str, consecutive)
    return ", ".join(parts)


def percent(fraction: float | None, digits: int = 0) -> str:
    """A fraction as percent."""
    return NOTHING if fraction is None else f"{fraction * 100:.{digits}f} %"


def interval(low: float | None, high: float | None, digits: int = 0) -> str:
    """The two ends of an interval."""
    return "" if low is None or high is None else f"{low:,.{digits}f} – {high:,.{digits}f}"


def interval_ends(low: float | None, high: float | None) -> str:
    """The two ends of an interval, with as many digits as they need."""
    return "" if low is None or high is None else f"{text(low)} – {text(high)}"


def date_text(unix: float | None) -> str:
    """Local date and time of a wall-clock second."""
    return time.strftime("%d %b %H:%M:%S", time.localtime(unix)) if unix else NOTHING


def age_text(unix: float | None, now: float | None = None) -> str:
    """How long ago something was."""
    if not unix:
        return NOTHING
    seconds = max(0.0, (now or time.time()) - unix)
    for size, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {name} ago"
    return f"{seconds:.0f} s ago"


#: What a job that is not ours is called.
FOREIGN = "foreign job"


#: What of a layout its words tell.
IN_LAYOUT = ("dp", "tp", "pp", "cp", "ep", "cp_method", "zero_stage", "shard_ranks", "world_size")


def layout(degrees: Mapping[str, Any] | None) -> str:
    """Degrees of parallelism in a few characters; axes of one rank are left out. Those of a foreign job nobody
    told; of another trainer in a study the number of its ranks.
    """
    if not degrees:
        return NOTHING if degrees is None else FOREIGN
    if RANKS in degrees:
        return several(int(degrees[RANKS]), "ranks")
    axes = [axis for axis in ("dp", "tp", "pp", "cp", "ep") if degrees.get(axis, 1) > 1]
    method = {"cp": f" {degrees['cp_method']}"} if degrees.get("cp_method") else {}
    parts = [f"{axis}{degrees[axis]}{method.get(axis, '')}" for axis in axes]
    stage, width = degrees.get("zero_stage", 0), degrees.get("shard_ranks")
    sharding = [f"ZeRO-{stage}" + (f" over {width}" if width else "")] if stage else []
    return " · ".join(parts + sharding) or "1 rank"


#: How keys of environment variables begin.
VARIABLES = "environment."


def short(key: str) -> str:
    """A dotted key as a column title; a variable keeps its name."""
    if key.startswith(VARIABLES):
        return key.rpartition(".")[2]
    # It loads the whole configuration, which half of the commands never need.
    from engine.config.knobs.catalogue import facts_of

    return facts_of(key).short or key.rpartition(".")[2].replace("_", " ")


def value(item: Any) -> str:
    """A value of a configuration, without a long tail of digits."""
    if isinstance(item, bool):
        return "yes" if item else "no"
    return f"{item:.4g}" if isinstance(item, float) else NOTHING if item is None else str(item)


def choice(key: str, item: Any) -> str:
    """A value that a knob can have."""
    if item is not None:
        return value(item)
    from engine.config.knobs.catalogue import facts_of  # as in short

    return facts_of(key).unset or value(item)


def point(values: Mapping[str, Any]) -> str:
    """A point of a space in one line: the layout, then what else is turned."""
    degrees = {
        key.removeprefix("parallel."): item for key, item in values.items() if key.startswith("parallel.")
    }
    others = [
        f"{short(key)} {choice(key, item)}" for key, item in values.items() if not key.startswith("parallel.")
    ]
    return ", ".join([*([layout(degrees)] if degrees else []), *others])


def identifier(key: str) -> str:
    """A dotted key as part of a widget's key."""
    return key.replace(".", "-").replace("_", "-")


#: What begins something in Markdown, HTML, LaTeX, or a link.
_MARKUP = set("\\*_`[]#$~:<>|!&")


#: How a sentence that the terminal says, too, names a command.
_COMMAND = re.compile(r"`((?:workbench|torchrun) [^`]+|workbench)`")


def plain_commands(text: str) -> str:
    """For where Markdown is not read: commands without the marks around them."""
    return _COMMAND.sub(r"\1", text)


def code(text: str) -> str:
    """A name as code in Markdown, letter by letter, whatever is in it."""
    longest = max((len(marks) for marks in re.findall("`+", text)), default=0)
    marks, room = "`" * (longest + 1), " " * (longest > 0)
    return f"{marks}{room}{' '.join(text.split())}{room}{marks}"


def escape_badge(text: str) -> str:
    """As ``escape``, for a badge: brackets are left, since Streamlit escapes those of a badge itself."""
    return re.sub(r"\\([\[\]])", r"\1", escape(text))


def escape(text: str) -> str:
    """Text of one paragraph that Markdown leaves alone, but for commands to type, which become code."""
    plain = " ".join(text.split())
    parts = _COMMAND.split(plain)  # what stands between commands, and these
    escaped_text = "".join(
        f"`{part}`"
        if number % 2
        else "".join(f"\\{letter}" if letter in _MARKUP else letter for letter in part)
        for number, part in enumerate(parts)
    )
    # A list, or a number of one, begins with these.
    return re.sub(r"^(\d{1,9})?([-+.)])", r"\1\\\2", escaped_text)


def sharing_words(parameters: int) -> str:
    """How many parameters sharing saves, to be said behind their number; empty where nothing is shared."""
    return f", {count(parameters)} fewer by sharing" if parameters else ""


def named_ranks(ranks: Sequence[int]) -> str:
    """Ranks by their numbers, with a word for what these are: rank 2; ranks 0, 1."""
    return f"rank{'s' if len(ranks) > 1 else ''} {first_ranks(ranks)}"


def first_ranks(ranks: Sequence[int]) -> str:
    """The first of them by number, and how many more."""
    more_text = f" and {len(ranks) - _SHOWN_RANKS:,} more" if len(ranks) > _SHOWN_RANKS else ""
    return ", ".join(map(str, ranks[:_SHOWN_RANKS])) + more_text
