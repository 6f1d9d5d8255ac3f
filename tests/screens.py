"""Every page as a picture, light and dark, 1440 and 800 pixels wide: ``python -m tests.screens DIR [NAME ...]``.

With names, of those pages alone: ``start``, ``start-dark`` or ``start-dark-800``.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import sync_playwright

from engine.run import run_folder
from engine.run.calibration import store
from tests.support.engine.calibrations import calibration
from tests.support.workbench.decided_study import write_decided
from tests.support.workbench.special_runs import write_special
from tests.support.workbench.synthetic_live import RUN, write_live
from tests.workbench.pages.conftest import (
    CHROMIUM,
    DRAWING_MILLISECONDS,
    FLAGS,
    PATIENCE_MILLISECONDS,
    Visit,
    start_server,
)
from tests.workbench.pages.homes import full_home
from workbench.home.notes import change_annotations
from workbench.pages.navigation import ENTRIES
from workbench.pages.run.details import SECTIONS

WIDTHS = (1440, 800)
HEIGHT = 1000
SCHEMES = ("light", "dark")
#: What opens on a page before it is looked at.
OPENED = {"tune-live": ("Changes", "Windows")}


def pages(home: Path) -> dict[str, str]:
    """Name -> address of each page and view of a home that is written."""
    live, study = full_home(home), write_live(home)
    change_annotations(
        home / "studies" / study,
        "The run of the paper's table 3: int8 stays, topk forgets too much.",
        ["paper", "int8"],
    )
    adapted, sparse = write_special(home)
    decided = write_decided(home)
    runs = sorted(folder.name for folder in home.iterdir() if folder.name[:2] == "20")
    finished, failed = (next(name for name in runs if name.endswith(end)) for end in ("a7e2", "03f3"))
    _calibrate(home, adapted)
    return addresses(finished, failed, live, adapted, sparse) | {
        "tune-live": f"/tune?view=watch&study={study}",
        "study-live": f"/runs?id={study}",
        "tune-decided": f"/tune?view=watch&study={decided}",
        "run-roofline": f"/runs?id={adapted}&section=Roofline",
    }


def addresses(finished: str, failed: str, live: str, adapted: str, sparse: str) -> dict[str, str]:
    """Name -> address of every page, of each view of a run that has ended, and of what other runs show."""
    views = {f"run-{name.lower().replace(' ', '-')}": quote(name) for name in list(SECTIONS)[1:]}
    return {
        **{entry.address: f"/{entry.address}" for entry in ENTRIES},
        "start": "/",
        "runs": f"/runs?id={finished}",
        "run-going": f"/runs?id={live}",
        **{name: f"/runs?id={finished}&section={section}" for name, section in views.items()},
        "run-failed": f"/runs?id={failed}",
        "run-failed-logs": f"/runs?id={failed}&section=Logs",
        "live": f"/live?run={live}",
        "live-ended": f"/live?run={finished}",
        "live-tuned": f"/live?run={RUN}",
        "live-adapted": f"/live?run={adapted}",
        "live-sparse": f"/live?run={sparse}",
        "run-adapted": f"/runs?id={adapted}&section={quote('Loss and memory')}",
        "run-sparse": f"/runs?id={sparse}&section={quote('Loss and memory')}",
        "steps": f"/steps?run={finished}",
        "plan": "/plan?cluster=dgx-a100&nodes=2&model=350m&batch=64",
        "tune": "/tune?view=watch&study=quickstart",
        "tune-new": "/tune?view=new",
        "compare": "/compare?ids=quickstart:0,quickstart:4,quickstart:5",
        "export": "/export?export=quickstart",
    }


def empty_pages(home: Path) -> dict[str, str]:
    """Name -> address of each page of a home in which nothing has run yet."""
    home.mkdir()
    return {f"empty-{entry.address}": f"/{entry.address}" for entry in ENTRIES} | {"empty-start": "/"}


def _calibrate(home: Path, run: str) -> None:
    """Gives a run the calibration without which it has no roof."""
    found = calibration((2, 4))
    store.save(home, found)
    status = run_folder.read_json(home / run / run_folder.STATUS) or {}
    status["calibration"] = {"fingerprint": found.fingerprint.id}
    run_folder.write_json(home / run / run_folder.STATUS, status)


def main() -> None:
    """Writes a home, serves it, and looks at all of it; then an empty one."""
    out, names = Path(sys.argv[1]), set(sys.argv[2:])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for write in (pages, empty_pages):
            home = Path(scratch) / write.__name__
            places = write(home)
            server, base = start_server(home, Path(scratch) / f"{write.__name__}.log")
            try:
                for scheme, width in itertools.product(SCHEMES, WIDTHS):
                    wanted = {
                        name: address
                        for name, address in places.items()
                        if not names or names & _names(name, scheme, width)
                    }
                    _look(chromium, base, wanted, out, scheme, width)
            finally:
                server.terminate()
                server.wait(20)
        chromium.close()


def _names(name: str, scheme: str, width: int) -> set[str]:
    return {name, f"{name}-{scheme}", f"{name}-{scheme}-{width}"}


def _look(chromium: Any, base: str, addresses: dict[str, str], out: Path, scheme: str, width: int) -> None:
    context = chromium.new_context(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme)
    tab = Visit(context.new_page())
    tab.page.set_default_timeout(PATIENCE_MILLISECONDS)
    for name, address in addresses.items():
        tab.open(base + address)
        for title in OPENED.get(name, ()):
            tab.page.get_by_text(title, exact=True).first.click()
            tab.settle()
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
