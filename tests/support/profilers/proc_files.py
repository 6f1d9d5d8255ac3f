"""Files of /proc as Linux writes them, with numbers that a test chooses."""

from __future__ import annotations

from pathlib import Path

_NET_HEAD = "Inter-| Receive | Transmit\n face |bytes packets errs drop fifo frame |bytes packets errs drop\n"


def stat(*cores: tuple[int, int]) -> str:
    """/proc/stat of cores 0, 2, 4, ...: their busy and idle ticks. A tenth of the busy ones are a guest's."""
    rows = [
        f"{busy} 0 0 {idle} 0 0 0 0 {busy // 10} 0"
        for busy, idle in ((sum(part) for part in zip(*cores, strict=True)), *cores)
    ]
    numbered = "".join(f"cpu{2 * core} {row}\n" for core, row in enumerate(rows[1:]))
    return f"cpu  {rows[0]}\n{numbered}intr 12 0 0\nctxt 9\n"


def write_proc(
    folder: Path,
    stat: str = stat((0, 0)),
    available_kib: int = 300,
    eth0_sent: int | None = 10,
) -> None:
    """Change the files in place, as a kernel would: who has them open sees it."""
    eth0 = "" if eth0_sent is None else f"  eth0:      20     4 0 0 0 0 0 0 {eth0_sent} 3 0 0 0 0 0 0\n"
    files = {
        "stat": stat,
        "meminfo": f"MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: {available_kib} kB\nBuffers: 5 kB\n",
        "net/dev": f"{_NET_HEAD}    lo:       7     1 0 0 0 0 0 0 7 1 0 0 0 0 0 0\n{eth0}",
        "diskstats": " 254 0 vda 1 0 6 1 1 0 8 1 0 1 1 0 0 0 0 0 0\n"
        " 254 1 vda1 1 0 6 1 1 0 8 1 0 1 1 0 0 0 0 0 0\n   7 0 loop0 1 0 99 1 1 0 99 1 0 1 1\n",
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        with path.open("r+" if path.exists() else "w", encoding="ascii") as file:
            file.write(text)
            file.truncate()
    for disk in ("vda/device", "loop0"):
        (folder / "block" / disk).mkdir(parents=True, exist_ok=True)
