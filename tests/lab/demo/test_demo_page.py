"""The page in headless Chromium: uploads, clicks, damaged files, another model, downloads, keyboard and phone."""

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
    pytest.mark.slow,
]


def test_upload_click_damaged_file_keyboard_and_another_model(capfd):
    digits = ln.load("digits")
    card = make_card(DetectorCard, replace(DIGITS, image_size=64, proposals=20), ("cell",), category_ids=(1,))
    detector = Detector(Detector.build(card, 1).eval(), card)  # with random weights
    with open_page({"digits": digits, "objects": detector}) as tab:
        page = tab.page
        digit = dict(reversed(pair) for pair in example_images(digits))["digit 8"]
        tab.upload("my digit.png", encode(digit))
        expected = digits.predict(digit)[0].class_name
        assert page.locator("#headline").inner_text().startswith(f"Class {expected}, with probability")
        assert page.locator("#about").inner_text() == "my digit.png: 8 x 8 pixels, gray"
        before = {name: tab.source_of_map(name) for name in ("content", "position", "share", "field")}
        tab.click_position(0.2, 0.95)
        assert "At row 7, column 1" in page.locator(".share").inner_text()
        assert all(tab.source_of_map(name) != source for name, source in before.items())
        for control in ("layer", "head"):
            before = tab.source_of_map("position")
            page.locator(f"#{control}").select_option(index=1)
            tab.wait()
            assert tab.source_of_map("position") != before

        tab.upload("text.png", b"this is not an image")
        assert "text.png" in page.locator("#error").inner_text()
        tifffile.imwrite(stack := io.BytesIO(), np.zeros((3, 9, 8), np.uint8), photometric="minisblack")
        tab.upload("stack.tif", stack.getvalue())
        assert "3 channels or planes" in page.locator("#error").inner_text()
        page.keyboard.type("1")  # the field for the channel has the focus
        page.keyboard.press("Enter")
        page.locator("#about").filter(has_text="stack.tif: 8 x 9 pixels, gray").wait_for()
        page.locator("#model").focus()
        reached = []
        for _ in range(20):
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.closest('[id]')?.id"))
        assert {"examples", "file", "channel", "layer", "head", "row", "column"} <= {*reached}

        page.locator("#model").select_option("objects")
        page.get_by_text(re.compile(r"^\d+ objects?")).wait_for()
        tab.wait()
        with page.expect_download() as download:
            page.get_by_role("link", name="labels.png").click()
        assert Image.open(download.value.path()).mode == "I;16"
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert tab.other_hosts() == set()
        errors = [message for message in tab.messages if message.startswith(("error", "exception"))]
        assert [error for error in errors if "status of 400" not in error] == []  # the refused files
    assert "Traceback" not in "".join(capfd.readouterr())
