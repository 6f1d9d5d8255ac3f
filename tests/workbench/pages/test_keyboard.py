"""Every page by the keyboard alone, in a real browser: Tab comes to each control, what has the focus can be seen, and
Enter, Space and arrows do what a click does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.workbench.pages.conftest import Visit
from tests.workbench.pages.homes import home_of_every_page
from tests.workbench.pages.test_accessibility import ADDRESSES

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

#: What scrolls, and a table, which marks a cell.
_MARKS_ITSELF = ("MAIN ", "CANVAS ", "TD ")
#: Streamlit shows it where the mouse is, beside code that can be selected.
_OF_THE_MOUSE = "BUTTON Copy to clipboard"
#: More than any page has.
MOST_STOPS = 400
_NAME = """one => `${one.tagName} ${one.getAttribute('aria-label') || one.innerText || one.href || ''}`
  .replace(/\\s+/g, ' ').slice(0, 80)"""
#: Names of what can be operated and seen, numbered in the order of the page. A choice of several buttons is one: Tab
#: comes to one of them, arrows lead to the others.
_NUMBER = f"""() => {{
  const named = {_NAME}, group = one => one.closest('[data-testid=stButtonGroup]') ?? one
  const wanted = 'a[href], button, input, textarea, summary, [role=tab], [role=combobox]'
  const all = new Set([...document.querySelectorAll(wanted)].filter(one =>
    one.checkVisibility() && one.getClientRects().length && !one.disabled && one.tabIndex >= 0).map(group));
  [...all].forEach((one, place) => one.setAttribute('data-stop', place))
  return [...all].map(named)
}}"""
#: The number of what has the focus, whether it, or what is around it, looks otherwise than without, and its name.
_FOCUSED = f"""async () => {{
  const named = {_NAME}, one = document.activeElement
  if (!one || one === document.body) return null
  const around = [one, ...(one.parentElement?.children ?? [])]
  for (let at = one.parentElement, up = 0; at && up < 4; at = at.parentElement, up++) around.push(at)
  const look = () => around.map(part => {{
    part.style.transition = 'none'
    const {{outline, boxShadow, borderColor, backgroundColor, color, textDecorationLine}} = getComputedStyle(part)
    return [outline, boxShadow, borderColor, backgroundColor, color, textDecorationLine].join()
  }}).join('|')
  const focused = look()
  one.blur()
  await new Promise(done => setTimeout(done, 60))  // some parts are drawn anew a little later
  const plain = look()
  one.focus({{preventScroll: true, focusVisible: true}})
  await new Promise(done => setTimeout(done, 20))
  const numbered = one.closest('[data-stop]')
  return [parseInt(numbered?.getAttribute('data-stop') ?? '-1'), focused !== plain, named(one)]
}}"""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, serve: Callable[[Path], str]) -> tuple[str, str, str]:
    """A server for a home with everything in it, a run with a call to look at, and one that goes."""
    home = tmp_path_factory.mktemp("keyboard")
    run, going = home_of_every_page(home)
    return serve(home), run, going


def stops(tab: Visit) -> tuple[list[str], set[int], list[str]]:
    """Names of all controls, the numbers of those that Tab came to, and what had the focus and did not show it."""
    refresh = tab.page.get_by_label("Refresh", exact=True)
    if refresh.count():  # what is drawn anew each second loses its numbers
        tab.page.get_by_text("Refresh", exact=True).first.click()
        tab.settle()
    tab.page.wait_for_timeout(2000)  # what is drawn anew for what the browser keeps, too
    tab.settle()
    names = tab.page.evaluate(_NUMBER)
    tab.page.evaluate("document.activeElement && document.activeElement.blur()")
    reached, unseen, ends = set[int](), list[str](), 0
    for _ in range(MOST_STOPS):
        tab.page.keyboard.press("Tab")
        found = tab.page.evaluate(_FOCUSED)
        ends += found is None  # it begins where something was clicked last
        if ends > 1:
            break
        if found is None:
            continue
        place, seen, name = found
        reached.add(place)
        if not seen and not name.startswith(_MARKS_ITSELF):
            unseen.append(name)
    return names, reached, unseen


@pytest.mark.drawn(2)
@pytest.mark.parametrize("page", [name for name in ADDRESSES if name != "new study of a command"])
def test_tab_comes_to_every_control_and_shows_where_it_is(
    places: tuple[str, str, str], visit: Callable[[str], Visit], page: str
) -> None:
    server, run, going = places
    tab = visit("light")
    tab.open(server + ADDRESSES[page].format(run=run, going=going))
    names, reached, unseen = stops(tab)
    assert len(names) > 8, "the navigation alone has more"
    missed = [name for place, name in enumerate(names) if place not in reached]
    assert [name for name in missed if name != _OF_THE_MOUSE] == []
    assert unseen == []
