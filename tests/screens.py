"""Every page as a picture, light and dark, 1440 and 800 pixels wide: ``python -m tests.screens DIR``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import sync_playwright

from tests.support.workbench.synthetic_live import write_live
from tests.workbench.pages.conftest import (
    CHROMIUM,
    DRAWING_MILLISECONDS,
    FLAGS,
    PATIENCE_MILLISECONDS,
    Visit,
    start_server,
)
from tests.workbench.pages.homes import full_home

WIDTHS = (1440, 800)
#: Of a run's views those that the others do not show.
VIEWS = ("Anatomy", "Collectives", "Loss and memory", "Host", "GPUs", "Configuration")
HEIGHT = 1000
SCHEMES = ("light", "dark")


def pages(home: Path, live: str, study: str) -> dict[str, str]:
    """Name -> address of each page and view."""
    runs = sorted(folder.name for folder in home.iterdir() if folder.name[:2] == "20")
    finished = next(name for name in runs if name.endswith("a7e2"))
    return {
        "start": "/",
        "runs": f"/runs?id={finished}",
        "run-going": f"/runs?id={live}",
        **{
            f"run-{name.lower().replace(' ', '-')}": f"/runs?id={finished}&section={quote(name)}"
            for name in VIEWS
        },
        "live": "/live",
        "steps": f"/steps?run={finished}",
        "plan": "/plan",
        "tune": "/tune?view=watch&study=quickstart",
        "tune-live": f"/tune?view=watch&study={study}",
        "tune-new": "/tune?view=new",
        "compare": "/compare?ids=quickstart:0,quickstart:4,quickstart:5",
        "export": "/export?export=quickstart",
        "machine": "/machine",
    }


def main() -> None:
    """Writes a home, serves it, and looks at all of it."""
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        home = Path(scratch) / "home"
        live = full_home(home)
        addresses = pages(home, live, write_live(home))
        server, base = start_server(home, Path(scratch) / "log")
        try:
            chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            for scheme in SCHEMES:
                for width in WIDTHS:
                    _look(chromium, base, addresses, out, scheme, width)
            chromium.close()
        finally:
            server.terminate()
            server.wait(20)


def _look(chromium: Any, base: str, addresses: dict[str, str], out: Path, scheme: str, width: int) -> None:
    context = chromium.new_context(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme)
    tab = Visit(context.new_page())
    tab.page.set_default_timeout(PATIENCE_MILLISECONDS)
    for name, address in addresses.items():
        tab.open(base + address)
        tab.page.wait_for_timeout(DRAWING_MILLISECONDS)
        for _ in range(2):  # what is drawn anew in the larger window may be taller
            tall = tab.page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
            tab.page.set_viewport_size({"width": width, "height": max(HEIGHT, int(tall))})
            tab.settle()
            tab.page.wait_for_timeout(DRAWING_MILLISECONDS)
        path = out / f"{name}-{scheme}-{width}.png"
        tab.page.screenshot(path=path)
        print(path, flush=True)
        tab.page.set_viewport_size({"width": width, "height": HEIGHT})
    context.close()


if __name__ == "__main__":
    main()
