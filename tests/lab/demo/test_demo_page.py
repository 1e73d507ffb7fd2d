"""The page in headless Chromium: examples, uploads, clicks, damaged files, keyboard, phone, downloads."""

import io
import re
from dataclasses import replace

import numpy as np
import pytest
import tifffile
from PIL import Image

import lambdanets as ln
from lab.demo.browser import CHROMIUM, encode, open_page
from lambdanets.inference.detector import Detector
from lambdanets.inference.model_card import DetectorCard, make_card
from lambdanets.recipes.scattered_digits import recipe as DIGITS
from lambdanets_lab.demo.examples import example_images

pytest.importorskip("playwright", reason="playwright is not installed")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, a browser that pip does not install"),
    pytest.mark.xdist_group("demo_page"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def digits():
    return ln.load("digits")


@pytest.fixture(scope="module")
def tab(digits):
    card = make_card(DetectorCard, replace(DIGITS, image_size=64, proposals=20), ("cell",), category_ids=(1,))
    detector = Detector(Detector.build(card, 1).eval(), card)  # with random weights
    with open_page({"digits": digits, "objects": detector}) as tab:
        yield tab


@pytest.fixture(autouse=True)
def no_traceback(capfd):
    yield
    output = capfd.readouterr()
    assert "Traceback" not in output.out + output.err


@pytest.fixture(scope="module")
def digit(digits):
    """A file with an image of an 8, and the class that the model finds."""
    image = dict(reversed(pair) for pair in example_images(digits))["digit 8"]
    return encode(image), digits.predict(image)[0].class_name


def test_upload_click_layer_and_head_show_what_changes(tab, digit):
    page = tab.page
    content, expected = digit
    tab.upload("my digit.png", content)
    assert page.locator("#headline").inner_text().startswith(f"Class {expected}, with probability")
    assert page.locator("#about").inner_text() == "my digit.png: 8 x 8 pixels, gray"
    before = {name: tab.source_of_map(name) for name in ("content", "position", "share", "field")}
    tab.click_position(0.2, 0.95)
    assert "At row 7, column 1" in page.locator(".share").inner_text()
    assert all(tab.source_of_map(name) != source for name, source in before.items())
    assert (page.locator("#row").input_value(), page.locator("#column").input_value()) == ("7", "1")
    for control in ("layer", "head"):
        before = tab.source_of_map("position")
        page.locator(f"#{control}").select_option(index=1)
        tab.wait()
        assert tab.source_of_map("position") != before


def test_unreadable_file_gives_a_sentence_and_the_page_stays_usable(tab, digit):
    files = "() => { const files = new DataTransfer(); files.items.add(new File(['x'], 'text.png')); return files; }"
    tab.page.locator("main").dispatch_event("drop", {"dataTransfer": tab.page.evaluate_handle(files)})
    tab.wait()
    assert "text.png" in tab.page.locator("#error").inner_text()
    assert not tab.page.locator("#result").is_visible()
    tifffile.imwrite(stack := io.BytesIO(), np.zeros((3, 9, 8), np.uint8), photometric="minisblack")
    tab.upload("stack.tif", stack.getvalue())
    assert "3 channels or planes" in tab.page.locator("#error").inner_text()
    tab.page.keyboard.type("1")  # the field for the channel has the focus
    tab.page.keyboard.press("Enter")
    tab.page.locator("#about").filter(has_text="stack.tif: 8 x 9 pixels, gray").wait_for()
    tab.upload("again.png", digit[0])
    assert tab.page.locator("#about").inner_text() == "again.png: 8 x 8 pixels, gray"


def test_keyboard_reaches_every_control(tab):
    page = tab.page
    page.reload(wait_until="networkidle")
    page.locator("#examples button").nth(1).focus()
    page.keyboard.press("Enter")
    page.locator("#about").filter(has_text="digit 3: 8 x 8 pixels").wait_for()
    tab.wait()
    with page.expect_file_chooser():
        page.locator("#file").press("Enter")
    page.locator("#model").focus()
    reached = []
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.closest('[id]')?.id"))
    for control in ("examples", "file", "channel", "layer", "head", "row", "column"):
        assert control in reached
    page.locator("#row").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("6")
    page.keyboard.press("Enter")
    page.locator(".share").filter(has_text="At row 6, column 3").wait_for()


def test_another_model_shows_its_result_and_downloads(tab):
    page = tab.page
    page.locator("#model").select_option("objects")
    page.get_by_text(re.compile(r"^\d+ objects?")).wait_for()
    tab.wait()
    with page.expect_download() as download:
        page.get_by_role("link", name="labels.png").click()
    assert Image.open(download.value.path()).mode == "I;16"
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1200, "height": 900})


def test_no_request_leaves_the_machine_and_the_console_has_no_errors(tab):
    assert len(tab.requests) > 20
    assert tab.other_hosts() == set()
    assert [x for x in tab.messages if x.startswith(("error", "exception")) and "status of 400" not in x] == []
