"""The page in headless Chromium: uploads, clicks, damaged files, many users, keyboard, phone."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from PIL import Image

import lambdanets as ln
from lambdanets.inference.detector import Detector, build_detector
from lambdanets.recipes.detection.digits import recipe as DIGITS
from lambdanets.training.detection.model import make_model_card
from lambdanets.web.examples import example_images
from web.browser import CHROMIUM, open_page
from web.uploads import TOO_LARGE, encode, readable_files, unreadable_files

pytest.importorskip("gradio", reason="gradio is not installed")
pytest.importorskip("playwright", reason="playwright is not installed")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, a browser that pip does not install"),
    pytest.mark.xdist_group("demo_page"),
    pytest.mark.slow,
]
USERS = 20


@pytest.fixture(scope="module")
def digits():
    return ln.load("digits")


@pytest.fixture(scope="module")
def tab(digits):
    card = make_model_card(replace(DIGITS, image_size=64), ("thing",), (1,))
    detector = Detector(build_detector(card).eval(), card)  # with random weights
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


def test_upload_shows_class_and_maps(tab, digit):
    content, expected = digit
    tab.upload("my digit.png", content)
    tab.page.get_by_text(f"Class {expected}, with probability").wait_for()
    tab.page.get_by_text("my digit.png: 8 x 8 pixels, gray").wait_for()
    assert tab.page.locator("#maps img").count() == 4


def test_click_moves_the_mark_and_changes_the_maps(tab):
    before = {title: tab.source_of_map(title) for title in ("Content", "Position", "Receptive field")}
    tab.click_place(0.2, 0.95)
    tab.page.get_by_text("At row 7, column 1").wait_for()
    assert all(tab.source_of_map(title) != source for title, source in before.items())
    assert tab.page.locator("#row input[type=number]").input_value() == "7"
    assert tab.page.locator("#column input[type=number]").input_value() == "1"


def test_another_layer_and_head_change_the_maps(tab):
    for control in ("layer", "head"):
        before = tab.source_of_map("Position")
        tab.page.locator(f"#{control} input").click()
        tab.page.get_by_role("option").nth(1).click()
        tab.page.wait_for_function(
            "before => document.querySelector('#maps img[alt=\"Position map\"]')?.src !== before", arg=before
        )


def test_unreadable_file_gives_a_sentence_and_the_page_stays_usable(tab, digit):
    for name, content, reason in unreadable_files():
        if content:
            tab.upload(name, content)
            alert = tab.page.locator("#result [role=alert]").filter(has_text=name)
            alert.wait_for()
            assert reason in alert.inner_text()
            assert tab.page.locator("#maps img").count() == 0
    tab.upload("again.png", digit[0])
    tab.page.get_by_text("again.png: 8 x 8 pixels").wait_for()


def test_empty_file_gives_a_sentence(tab):
    tab.upload("empty.png", b"")
    tab.page.get_by_text("the file is empty").wait_for()


def test_large_file_is_refused_with_a_sentence(tab):
    tab.upload(*TOO_LARGE)
    tab.page.get_by_text("exceed the maximum allowed size of 2.0 Mb").wait_for()


def test_unusual_image_is_processed(tab):
    for name, content in readable_files():
        tab.upload(name, content)
        shown = name.replace("<b>", "b")  # gradio removes characters
        tab.page.locator("#result").filter(has_text=f"{shown}: ").wait_for()
        assert tab.page.locator("#result [role=alert]").count() == 0, name


def test_keyboard_reaches_every_control(tab):
    page = tab.page
    page.reload()
    page.locator("#maps img").first.wait_for()
    page.locator("#examples button").nth(1).focus()
    page.keyboard.press("Enter")
    page.get_by_text("digit 3: 8 x 8 pixels").wait_for()
    with page.expect_file_chooser():
        page.locator("#upload button").press("Enter")
    reached = []
    page.evaluate("document.activeElement.blur()")
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.closest('[id]:not(#component-0)')?.id"))
        if page.evaluate("document.activeElement.matches('#row input[type=number]')"):
            break
    assert page.evaluate("document.activeElement.matches('#row input[type=number]')"), reached
    page.keyboard.press("Control+A")
    page.keyboard.type("6")
    page.get_by_text("At row 6, column 4").wait_for()


def test_phone_needs_no_horizontal_scrolling(tab):
    page = tab.page
    page.set_viewport_size({"width": 390, "height": 844})
    for name in ("Plan a layer", "Look at an image"):
        page.get_by_role("tab", name=name).click()
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1200, "height": 900})


def test_plan_follows_the_typed_shape(tab):
    page = tab.page
    page.get_by_role("tab", name="Plan a layer").click()
    page.locator("#plan-scope input").fill("4")
    page.get_by_text("Scope must be odd, or 0 for the whole map, got 4").wait_for()
    page.locator("#plan-scope input").fill("7")
    page.get_by_text("Chosen algorithm:").wait_for()
    assert page.locator("#plan .ln-chosen").count() >= 1
    page.get_by_role("tab", name="Look at an image").click()


def test_many_uploads_at_once_are_processed_or_refused(tab, digit):
    import httpx

    with httpx.Client(base_url=f"{tab.url}/gradio_api", timeout=60) as client:
        config = client.get(f"{tab.url}/config").json()
        upload = next(part["id"] for part in config["components"] if part["props"].get("elem_id") == "upload")
        function = next(event["id"] for event in config["dependencies"] if [upload, "upload"] in event["targets"])

        def send(user):
            (path,) = client.post("/upload", files={"files": ("same.png", digit[0])}).json()
            file = {"path": path, "orig_name": "same.png", "meta": {"_type": "gradio.FileData"}}
            session = f"user{user}"
            data = {"data": ["digits", file], "fn_index": function, "session_hash": session}
            queued = client.post("/queue/join", json=data)
            if queued.status_code == 503:
                return queued.json()["detail"]
            with client.stream("GET", "/queue/data", params={"session_hash": session}) as events:
                for line in events.iter_lines():
                    message = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
                    if message.get("msg") == "process_completed":
                        return str(message["output"])
            return "no response"

        with ThreadPoolExecutor(USERS) as pool:
            responses = list(pool.map(send, range(USERS)))
    processed = [response for response in responses if f"Class <b>{digit[1]}</b>" in response]
    refused = [response for response in responses if "Queue is full" in response]
    assert len(processed) + len(refused) == USERS, responses
    assert len(processed) >= 8


def test_other_host_names_are_refused(tab):
    import httpx

    assert httpx.get(tab.url, headers={"Host": "example.com"}).status_code == 400


def test_another_model_shows_its_result_and_downloads(tab):
    tab.page.get_by_label("Model").click()
    tab.page.get_by_role("option", name="objects").click()
    tab.page.get_by_text(re.compile(r"^\d+ objects?.* found")).wait_for()
    with tab.page.expect_download() as download:
        tab.page.get_by_role("link", name="labels.png").click()
    assert Image.open(download.value.path()).mode == "I;16"


def test_no_request_leaves_the_machine_and_the_console_has_no_errors(tab):
    assert len(tab.requests) > 20
    assert tab.other_hosts() == set()
    errors = [message for message in tab.messages if message.startswith(("error", "exception"))]
    # gradio asks for the progress of uploads that have already ended, gets a 404, and logs it
    assert [error for error in errors if "upload_progress" not in error and "error: Response" not in error] == []
