"""The page in a real browser: drawn, quiet, alone, and answering to the pointer and the slider."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hwbmpq.report import RunReport
from hwbmpq.report.html import write_page

selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
MakeReport = Callable[..., RunReport]
EVIL = '<img src=x onerror="document.title=1">{}'
SECONDS = 3.0
"""In which a large network's page has to be there."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not program or not driver:
        pytest.skip("chromium and chromedriver are not installed")
    options = selenium.ChromeOptions()
    options.binary_location = program
    for word in (
        "headless=new no-sandbox disable-gpu disable-quic no-first-run disable-background-networking "
        "disable-component-update disable-sync window-size=1440,2000"
    ).split():
        options.add_argument(f"--{word}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('browser')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = selenium.Chrome(options=options, service=selenium.ChromeService(driver))
    yield found
    found.quit()


@pytest.fixture(scope="module")
def opened(browser: Any, made_up_report: MakeReport, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = write_page([made_up_report()], tmp_path_factory.mktemp("page") / "report.html")
    browser.get(path.as_uri())
    return browser


def test_it_is_quiet_and_fetches_nothing(opened: Any) -> None:
    assert opened.get_log("browser") == []
    requests = [
        entry["message"]
        for entry in opened.get_log("performance")
        if '"Network.requestWillBeSent"' in entry["message"] and '"url":"file://' not in entry["message"]
    ]
    assert [entry for entry in requests if "http" in entry.split('"url":"')[1][:5]] == []


def test_all_plots_are_drawn(opened: Any) -> None:
    sizes = opened.execute_script(
        "return [...document.querySelectorAll('figure svg')].map(s => [s.getBoundingClientRect().width, s.getBBox().height])"
    )
    assert len(sizes) == 7
    assert all(width > 100 and height > 50 for width, height in sizes)


def test_the_slider_repaints_widths_and_costs(opened: Any) -> None:
    look = """
      const cells = [...document.querySelectorAll('#what-if-strip .cell')];
      return [cells.map(c => c.textContent).join(' '), cells.map(c => c.style.background).join(' '),
              document.getElementById('what-if-costs').textContent, cells.filter(c => c.classList.contains('changed')).length];
    """
    move = "const s = document.getElementById('slider'); s.value = arguments[0]; s.dispatchEvent(new Event('input'));"
    before = opened.execute_script(look)
    assert before[3] == 0  # it begins at the run's own widths
    opened.execute_script(move, 0)
    narrow = opened.execute_script(look)
    opened.execute_script(move, 10**6)
    wide = opened.execute_script(look)
    assert narrow[0] == "8 2 2 2 2 8"
    assert wide[0] == "8 4 4 4 4 8"
    assert narrow[1] != wide[1]
    assert "0.0 % of the expected benefit kept" in narrow[2]
    assert "100.0 % of the expected benefit kept" in wide[2]
    assert "memory" in wide[2]
    assert wide[3] > 0


def test_pointing_at_a_move_tells_its_reason(opened: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    mark = opened.find_element("css selector", "#plot-moves [data-tip^='after epoch']")
    opened.execute_script("arguments[0].scrollIntoView({block: 'center'})", mark)
    ActionChains(opened).move_to_element(mark).perform()
    tip = opened.find_element("id", "tip")
    assert tip.is_displayed()
    assert "rank 5 of 6" in tip.text
    ActionChains(opened).move_to_element(opened.find_element("css selector", "h1")).perform()
    assert not tip.is_displayed()


def test_dark_readers_get_a_dark_page(opened: Any) -> None:
    def colours() -> list[str]:
        found: list[str] = opened.execute_script(
            "const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]"
        )
        return found

    light = colours()
    media = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    dark = colours()
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert light[0] == "rgb(255, 255, 255)"
    assert dark[0] == "rgb(22, 24, 28)"
    assert light[1] != dark[1]


def test_a_telephone_scrolls_in_one_direction_only(opened: Any) -> None:
    opened.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": False},
    )
    wide = opened.execute_script("return document.documentElement.scrollWidth")
    opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert wide <= 390


def test_the_network_can_be_enlarged(opened: Any) -> None:
    width = "return document.getElementById('network').getBoundingClientRect().width"
    before = opened.execute_script(width)
    opened.execute_script("document.querySelector('[data-zoom=\"1.25\"]').click()")
    assert opened.execute_script(width) == pytest.approx(1.25 * before, rel=0.01)


def test_names_that_attack_do_nothing(browser: Any, made_up_report: MakeReport, tmp_path: Path) -> None:
    report = made_up_report(
        name=EVIL, run=EVIL, title="a title", device=EVIL, caveats=(EVIL,), command=(EVIL,)
    )
    browser.get(write_page([report], tmp_path / "evil.html").as_uri())
    assert browser.title == "a title – hwbmpq"
    assert browser.execute_script("return document.images.length") == 0
    assert EVIL.format(1) in browser.find_element("css selector", "#what-if-strip").get_attribute(
        "innerHTML"
    ).replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"')


def test_two_hundred_layers_are_there_in_three_seconds(
    browser: Any, made_up_report: MakeReport, tmp_path: Path
) -> None:
    path = write_page([made_up_report(layers=200, epochs=30)], tmp_path / "large.html")
    start = time.monotonic()
    browser.get(path.as_uri())
    browser.execute_script("return document.querySelectorAll('figure svg').length")
    assert time.monotonic() - start < SECONDS
    assert browser.get_log("browser") == []
