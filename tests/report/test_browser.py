"""Reports in a real browser: no complaint, edges tell their reasons, tables sort, buttons copy, nothing overflows."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import natpp
from natpp.report.page import write_report
from natpp.zoo import network
from tests.report.test_report import EVIL, evil_module, small_search

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: reports are not opened")
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

pytestmark = pytest.mark.xdist_group("browser")  # one browser for all
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTHS = (360, 1440)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    program = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no Chromium with its chromedriver was found, so reports are not opened")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield found
    found.quit()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    image = torch.randn(1, 3, 32, 32)
    results: dict[str, Any] = {name: natpp.optimize(name) for name in ("darts", "enas")}
    results["resnet56"] = natpp.optimize(network("resnet56"), example_input=image, budget={"madds": 0.6})
    return {name: result.report(folder / f"{name}.html") for name, result in results.items()}


NAMES = ("darts", "enas", "resnet56")


def test_a_search_and_hostile_names(browser: Any, tmp_path: Path) -> None:
    search = write_report(small_search("short", tmp_path / "run"), tmp_path / "search.html")
    hostile = write_report(evil_module(), tmp_path / "hostile.html")
    for path in (search, hostile):
        for width in WIDTHS:
            opened(browser, path, width)
            assert browser.execute_script("return document.scrollingElement.scrollWidth") <= width
            assert browser.get_log("browser") == []
    assert css(browser, "img") == []
    opened(browser, hostile)
    button = next(one for one in css(browser, "[data-show]") if one.text == EVIL)
    button.click()
    assert EVIL in details(browser)
    assert css(browser, "img") == []


def opened(browser: Any, path: Path, width: int = 1440, *, dark: bool = False) -> Any:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(path.as_uri())
    return browser


def css(browser: Any, selector: str) -> list[Any]:
    return list(browser.find_elements(By.CSS_SELECTOR, selector))


def details(browser: Any) -> str:
    return str(css(browser, "#details")[0].text)


def book(browser: Any) -> dict[str, Any]:
    return dict(json.loads(css(browser, "#data")[0].get_attribute("textContent"))["book"])


def assert_told(browser: Any, edge: Any) -> None:
    """The details are those of an edge: its operations, every probability, the masked ones with the reason, costs."""
    data = book(browser)
    own = data["edges"][int(edge.get_attribute("data-number"))]
    allowed, masked = data["chances"][own["chances"]]
    text = details(browser)
    assert own["name"] in text
    assert own["before"] in text
    assert own["after"] in text
    assert text.count(" %") == len(allowed) > 1
    assert all(op in text for op, _ in allowed)
    assert all(f"masked by {reason}" in text and ops[0] in text for reason, _, ops in masked)
    assert own["place"] in text
    assert "params" in text or own["place"] == "a shortcut, or room for one"


@pytest.mark.parametrize("name", NAMES)
def test_no_error_and_no_request(name: str, browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages[name])
    for button in css(browser, "#theme, thead button"):
        browser.execute_script("arguments[0].click()", button)
    assert browser.get_log("browser") == []
    messages = [json.loads(row["message"])["message"] for row in browser.get_log("performance")]
    asked = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith("data:")] == [pages[name].as_uri()]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_overflows(name: str, width: int, browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages[name], width)
    for block in css(browser, "details.block:nth-of-type(-n + 4)"):
        browser.execute_script("arguments[0].open = true", block)
    wide, inner = browser.execute_script("return [document.scrollingElement.scrollWidth, innerWidth]")
    assert wide <= inner == width
    outside = browser.execute_script(
        "return [...document.querySelectorAll('main > section > *, header > *')]"
        ".filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
    )
    assert outside == []


@pytest.mark.parametrize("name", NAMES)
def test_graphs_need_no_scrolling_on_a_laptop(name: str, browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages[name], 1200)
    for block in css(browser, "details.block:nth-of-type(-n + 6)"):
        browser.execute_script("arguments[0].open = true", block)
    holders = css(browser, "details[open] .scroll")
    assert holders
    sizes = [
        browser.execute_script("return [arguments[0].scrollWidth, arguments[0].clientWidth]", one) for one in holders
    ]
    assert all(wide <= room for wide, room in sizes)


@pytest.mark.parametrize("name", NAMES)
def test_pointing_at_an_edge_tells_its_transitions(name: str, browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages[name])
    assert not css(browser, "#details")[0].is_displayed()
    for edge in (css(browser, ".edge.changed")[0], css(browser, ".edge.changed")[-1]):
        label = edge.find_element(By.CSS_SELECTOR, ".label")
        browser.execute_script("arguments[0].scrollIntoView({block: 'center', inline: 'center'})", label)
        ActionChains(browser, duration=0).move_to_element(label).perform()
        assert_told(browser, edge)
        shown = css(browser, ".graph .edge.shown")
        assert len({one.get_attribute("data-number") for one in shown}) == 1
        assert len(shown) == 2  # before and after
    ActionChains(browser, duration=0).move_to_element(css(browser, "h2")[0]).perform()
    assert not css(browser, "#details")[0].is_displayed()


@pytest.mark.parametrize("name", NAMES)
def test_the_keyboard_gets_there_too(name: str, browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages[name])
    browser.execute_script("document.querySelector('svg.graph').closest('section').querySelector('h2').tabIndex = -1")
    browser.execute_script("document.querySelector('svg.graph').closest('section').querySelector('h2').focus()")
    keys = ActionChains(browser, duration=0)
    seen = set()
    for _ in range(8):
        keys.send_keys(Keys.TAB).perform()
        if "edge" in browser.switch_to.active_element.get_attribute("class").split():
            break
    for _ in range(3):
        edge = browser.switch_to.active_element
        seen.add(edge.get_attribute("aria-label"))
        assert css(browser, "#details")[0].is_displayed()
        data = book(browser)
        assert data["edges"][int(edge.get_attribute("data-number"))]["name"] in details(browser)
        keys.send_keys(Keys.ARROW_RIGHT).perform()
    assert len(seen) == 3
    keys.send_keys(Keys.ESCAPE).perform()
    assert not css(browser, "#details")[0].is_displayed()


def test_a_tap_on_a_phone_tells_it_at_the_bottom(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["darts"], 360)
    edge = css(browser, ".edge.changed")[0]
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', inline: 'center'})", edge)
    edge.find_element(By.CSS_SELECTOR, ".label").click()
    assert_told(browser, edge)
    box = css(browser, "#details")[0].rect
    assert (box["x"], box["width"]) == (0, 360)
    css(browser, "#details .close")[0].click()
    assert not css(browser, "#details")[0].is_displayed()


@pytest.mark.parametrize("name", NAMES)
def test_the_table_sorts(name: str, browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages[name])

    def column(number: int) -> list[str]:
        cells = css(browser, f"#changes-table tbody td:nth-child({number})")
        return [cell.get_attribute("data-value") or cell.text for cell in cells]

    saved = [float(value) for value in column(6)]
    assert saved == sorted(saved, reverse=True)
    assert len(saved) > 3
    head = css(browser, "#changes-table thead button")
    head[5].click()
    assert [float(value) for value in column(6)] == sorted(saved)
    head[2].click()
    assert column(3) == sorted(column(3))
    head[3].click()
    likely = [float(value) for value in column(4)]
    assert likely == sorted(likely, reverse=True)
    marked = css(browser, "#changes-table th[aria-sort]")
    assert [one.get_attribute("aria-sort") for one in marked] == ["descending"]


def test_a_row_leads_to_its_edge(browser: Any, pages: dict[str, Path]) -> None:
    for name in NAMES:
        opened(browser, pages[name])
        button = css(browser, "#changes-table .go")[-1]
        button.click()
        edge = browser.switch_to.active_element
        assert edge.get_attribute("data-number") == button.get_attribute("data-go")
        assert css(browser, "#details")[0].is_displayed()


@pytest.mark.parametrize("clipboard", [True, False])
def test_buttons_copy(clipboard: bool, browser: Any, pages: dict[str, Path]) -> None:
    """Also where a page has no clipboard of its own."""
    permissions = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    browser.execute_cdp_cmd("Browser.grantPermissions", permissions)
    source = "window.kept = navigator.clipboard;"
    if not clipboard:
        source += "Object.defineProperty(navigator, 'clipboard', { value: undefined });"
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": source})
    try:
        for name in ("darts", "resnet56"):
            opened(browser, pages[name])
            assert browser.execute_script("return !!navigator.clipboard") is clipboard
            copies = json.loads(css(browser, "#data")[0].get_attribute("textContent"))["copies"]
            for button, text in zip(css(browser, ".copies .copy"), copies, strict=True):
                button.click()
                browser.execute_async_script("setTimeout(arguments[0], 60)")
                assert button.text == "Copied"
                read = "const done = arguments[0]; window.kept.readText().then(done, (error) => done(String(error)))"
                assert browser.execute_async_script(read) == text
        genotype = json.loads(css(browser, "#data")[0].get_attribute("textContent"))["copies"][1]
        assert json.loads(genotype)["format"] == "natpp result"
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", {"identifier": added["identifier"]})


def test_light_and_dark(browser: Any, pages: dict[str, Path]) -> None:
    def paper() -> int:
        colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in colour[4:-1].split(","))

    opened(browser, pages["darts"], dark=True)
    assert paper() < 150
    css(browser, "#theme")[0].click()
    assert paper() > 700
    opened(browser, pages["darts"])
    assert paper() > 700
    css(browser, "#theme")[0].click()
    assert paper() < 150


def test_it_prints_on_few_pages_with_changed_blocks_open(browser: Any, pages: dict[str, Path]) -> None:
    import base64

    for name, most in (("darts", 3), ("resnet56", 14)):
        opened(browser, pages[name])
        printed = browser.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.69})
        count = base64.b64decode(printed["data"]).count(b"/Type /Page\n")
        assert 1 <= count <= most
        changed = css(browser, "details.block:has(summary em)")
        assert name == "darts" or len(changed) > 3
