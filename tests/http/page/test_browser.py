"""The status page in a real browser."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from engine.null_stage import NullStage, seated_slot
from live import Live, serve
from live_admin import TOKEN
from tierd.backends.null import NullBackend
from tierd.http.keys import line_of
from tierd.http.listeners import listen, url
from tierd.kv.bank import Bank
from tierd.settings import ModelSettings, ServerSettings, SwitchSettings
from tierd.slot import Slot

MARKUP = "<img src=x onerror=document.title='taken'>"
PHONE = {"width": 360, "height": 740}
# A browser waits as long as a machine that is busy needs.
PATIENCE_MS = 20_000

expect.set_options(timeout=PATIENCE_MS)


@dataclass
class Looked:
    """A page that is looked at. asked: the addresses that it asked for. said: errors it met."""

    page: Page
    asked: list[str]
    said: list[str]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    executable = shutil.which("chromium")
    assert executable is not None, "`make test` installs chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass(frozen=True)
class House:
    """A server of "a" and "b", of which a fake device has room for one, and its admin listener's address."""

    live: Live
    admin: str
    stage: NullStage


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    stage, bank = NullStage(10), Bank(1 << 20)
    models = [
        ModelSettings(id="a", path=Path("a.gguf"), default=True, streams=4),
        ModelSettings(id="b", path=Path("b.gguf"), streams=4),
    ]

    def seat(model: ModelSettings) -> Slot:
        on = model.preload and stage.reservations.free >= 10
        return seated_slot(model, stage, size=10, on=on, bank=bank, regions=4)

    with (
        closing(listen("127.0.0.1:0")) as door,
        serve(
            models,
            admin=[(door, TOKEN)],
            open_one=seat,
            parts={"bank": bank, "tier": stage.status, "release": stage.reservations.release},
            switch=SwitchSettings(min_hold_s=600, max_wait_s=600),
        ) as live,
    ):
        yield House(live, url(door), stage)


@pytest.fixture(scope="module")
def guarded(tiny_model: ModelSettings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    keys = tmp_path_factory.mktemp("guarded") / "keys"
    keys.write_text(f"{line_of('alice', 'of-alice')}\n")
    keys.chmod(0o600)
    with serve([tiny_model], server=ServerSettings(api_keys_file=keys)) as live:
        yield live


def looked_at(browser: Browser, address: str, **context: object) -> Iterator[Looked]:
    """Open a page; at the end it must not have met an error or asked anybody else."""
    page = browser.new_page(**context)  # type: ignore[arg-type]
    page.set_default_timeout(PATIENCE_MS)
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(address + "/")
    yield Looked(page, asked, said)
    assert {request for request in asked if not request.startswith(address + "/")} == set()
    assert [line for line in said if "401" not in line] == []
    page.close()


@pytest.fixture
def public(browser: Browser, house: House) -> Iterator[Looked]:
    yield from looked_at(browser, house.live.url)


@pytest.fixture
def talking(browser: Browser, live: Live) -> Iterator[Looked]:
    yield from looked_at(browser, live.url)


def test_models_are_shown_with_where_they_run(public: Looked) -> None:
    page = public.page
    for model in ("a", "b"):
        card = page.get_by_role("article", name=model)
        expect(card.locator(".badge")).to_have_text("gpu:resident")
        expect(card).to_contain_text("Regions of")
    expect(page.get_by_role("status").first).to_contain_text("2 models")
    expect(page.get_by_role("button", name="Unload")).to_have_count(0)
    expect(page.get_by_role("button", name="Drain")).to_be_hidden()
    expect(page.locator("#passes")).to_contain_text("Nothing that was meant for a GPU")


def test_an_administrator_switches_and_sees_it(browser: Browser, house: House) -> None:
    for looked in looked_at(browser, house.admin):
        page = looked.page
        page.get_by_label("Admin token").fill("wrong")
        page.get_by_role("button", name="Show").click()
        expect(page.get_by_role("alert")).to_have_text("That is not the admin token.")
        page.get_by_label("Admin token").fill(TOKEN)
        page.get_by_role("button", name="Show").click()
        away = page.get_by_role("article").filter(has_text="away from the GPU")
        coming = away.locator("h3").inner_text()
        away.get_by_role("button", name="Bring to the GPU").click()
        expect(page.get_by_role("alert")).to_have_text(f"Bringing {coming} to the GPU: done.")
        expect(page.locator(".switch").first).to_contain_text(f"{coming} came for")
        expect(page.get_by_role("article", name=coming)).to_contain_text("on the GPU, whole")
        page.once("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Drain").click()
        expect(page.locator("#health-words")).to_contain_text("takes no requests for now")
        page.get_by_role("button", name="Admit again").click()
        expect(page.locator("#health-words")).to_contain_text("2 models")
        expect(page.locator("#chat")).to_be_hidden()
        assert TOKEN not in "".join(looked.asked)
        assert TOKEN not in page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])")


def test_a_chat_is_written_as_it_comes(talking: Looked) -> None:
    page = talking.page
    text = page.get_by_label("Message")
    text.fill("hello")
    text.press("Enter")
    expect(page.locator(".turn.is-user .said")).to_have_text("hello")
    expect(page.locator("#chat-figures")).to_contain_text("per second")
    said = page.locator(".turn.is-assistant .said")
    expect(said).not_to_be_empty()
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator(".turn")).to_have_count(0)
    expect(text).to_be_focused()


def test_what_the_daemon_refuses_is_said(talking: Looked) -> None:
    page = talking.page
    page.get_by_role("combobox", name="Model").select_option("plain")
    page.get_by_label("Message").fill("hello")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".turn.is-assistant")).to_contain_text("chat template")
    talking.said.clear()  # the browser notes the refusal too


def test_with_keys_streams_are_not_shown_and_the_chat_takes_a_key(browser: Browser, guarded: Live) -> None:
    for looked in looked_at(browser, guarded.url):
        page = looked.page
        expect(page.locator("#streams")).to_contain_text("Not shown here")
        page.get_by_label("Message").fill("hello")
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".turn.is-assistant")).to_contain_text("needs an API key")
        page.get_by_label("API key").fill("of-alice")
        page.get_by_label("Message").fill("hello")
        page.get_by_role("button", name="Send").click()
        expect(page.locator("#chat-figures")).to_contain_text("per second")


def test_of_thousands_of_streams_it_shows_the_first_and_how_many_more(browser: Browser, house: House) -> None:
    """Nothing of them makes it slow, or wide."""
    state = house.live.get("/page/state.json").json()
    stream = {"region": 0, "positions": 9, "paused": False, "moving": False, "away": False, "words": None}
    state["sessions"] = [
        stream | {"id": f"{n:032x}", "model": "a", "prompt": 8, "generated": n} for n in range(5000)
    ]
    state["models"][0]["regions"] = [{"region": n, "state": "live", "positions": n} for n in range(1024)]
    state["models"][0]["region_positions"] = 1024
    page = browser.new_page(viewport=PHONE)  # type: ignore[arg-type]
    page.route("**/page/state.json", lambda route: route.fulfill(json=state))
    page.goto(house.live.url + "/")
    expect(page.locator("#streams tbody tr")).to_have_count(100)
    expect(page.locator("#streams")).to_contain_text("and 4,900 more; tierd ctl sessions lists all.")
    expect(page.locator(".region")).to_have_count(1024 + len(state["models"][1]["regions"]))
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.close()


def test_names_are_text_and_never_markup(browser: Browser, tiny_model: ModelSettings) -> None:
    with serve([replace(tiny_model, id=MARKUP)], backend=NullBackend()) as live:
        for looked in looked_at(browser, live.url):
            expect(looked.page.locator("h3")).to_have_text(MARKUP)
            assert looked.page.title() == "tierd"


def test_the_keyboard_reaches_everything_in_order(public: Looked) -> None:
    page = public.page
    expect(page.locator(".card")).to_have_count(2)
    seen = []
    for _ in range(8):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", seen
    assert seen[0] == "Skip to the models"
    assert [name for name in seen if name.startswith("chat-")] == [
        "chat-model", "chat-clear", "chat-text", "chat-send"
    ]  # fmt: skip


# WCAG 2.2, 1.4.3 and 1.4.11: texts 4.5 to 1, borders of fields 3 to 1, by the formula of its "relative
# luminance". Returns what has less, placeholders and what is in motion among them.
PALE = """() => {
  const channel = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const rgba = (colour) => [...colour.match(/[\\d.]+/g).map(Number), 1].slice(0, 4);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const over = ([r, g, b, a], [x, y, z]) => [[r, x], [g, y], [b, z]].map(([c, d]) => c * a + d * (1 - a));
  const ground = (node) => {
    if (!node) return [255, 255, 255];
    const colour = rgba(getComputedStyle(node).backgroundColor);
    return colour[3] === 1 ? colour : over(colour, ground(node.parentElement));
  };
  const opacity = (node) => node ? getComputedStyle(node).opacity * opacity(node.parentElement) : 1;
  const contrast = (colour, share, below) => {
    const [r, g, b, a] = rgba(colour);
    const [one, other] = [light(over([r, g, b, a * share], below)), light(below)].sort((x, y) => y - x);
    return (one + 0.05) / (other + 0.05);
  };
  const pale = [];
  const check = (what, least, found) => found < least && pale.push(`${what}: ${found.toFixed(2)}`);
  for (const node of document.body.querySelectorAll("*")) {
    if (node.disabled || node.closest("noscript") || !node.checkVisibility()) continue;
    const field = node.matches("input, select, textarea"), style = getComputedStyle(node);
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    const name = node.id || node.textContent.trim().slice(0, 30);
    if (own || field) check(name, 4.5, contrast(style.color, opacity(node), ground(node)));
    if (field) check(`border of ${name}`, 3, contrast(style.borderTopColor, 1, ground(node.parentElement)));
    if (node.placeholder) {
      const {color, opacity: share} = getComputedStyle(node, "::placeholder");
      check(`placeholder of ${name}`, 4.5, contrast(color, share * opacity(node), ground(node)));
    }
  }
  return pale;
}"""
# What is shown while a model is loaded, as faint as it ever is.
LOADING = """() => {
  const line = document.createElement("p");
  line.className = "loading";
  line.textContent = "b is being loaded";
  document.querySelector("main").append(line);
  for (const motion of line.getAnimations()) { motion.pause(); motion.currentTime = 0; }
  return line.getAnimations().length;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out(browser: Browser, house: House, scheme: str) -> None:
    for looked in looked_at(browser, house.live.url, color_scheme=scheme):
        expect(looked.page.locator(".card")).to_have_count(2)
        ground = looked.page.evaluate("getComputedStyle(document.body).backgroundColor")
        red = int(re.findall(r"\d+", ground)[0])
        assert red > 128 if scheme == "light" else red < 128
        assert looked.page.evaluate(LOADING) == 1
        assert looked.page.evaluate(PALE) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_fields_for_keys_stand_out(browser: Browser, house: House, guarded: Live, scheme: str) -> None:
    for address, field in ((house.admin, "Admin token"), (guarded.url, "API key")):
        for looked in looked_at(browser, address, color_scheme=scheme):
            expect(looked.page.get_by_label(field)).to_be_visible()
            assert looked.page.evaluate(PALE) == []


WIDE = """(streams) => {
  const row = document.createElement("p");
  row.style.width = "60rem";
  streams.append(row);
}"""


def test_it_fits_on_a_phone(browser: Browser, house: House) -> None:
    for looked in looked_at(browser, house.live.url, viewport=PHONE):
        expect(looked.page.locator(".card")).to_have_count(2)
        # A stream's row is wider than a phone; it scrolls by itself.
        looked.page.locator("#streams").evaluate(WIDE)
        assert looked.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_nothing_moves_where_that_is_not_wanted(browser: Browser, house: House) -> None:
    moving = """() => [...document.querySelectorAll("*")].filter((node) => {
      const style = getComputedStyle(node);
      return style.animationName !== "none" || parseFloat(style.transitionDuration) > 0;
    }).length"""
    for motion, moves in (("reduce", False), ("no-preference", True)):
        for looked in looked_at(browser, house.live.url, reduced_motion=motion):
            expect(looked.page.locator(".card")).to_have_count(2)
            assert (looked.page.evaluate(moving) > 0) is moves
