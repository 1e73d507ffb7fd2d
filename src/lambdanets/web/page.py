"""The page: its components, and which function handles each event. The functions are in the other modules."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

from lambdanets.errors import InputError
from lambdanets.inference.classifier import Classifier
from lambdanets.inference.detector import Detector
from lambdanets.web import texts
from lambdanets.web.attention import attention_maps, clicked_pixel, default_layer, marked, num_heads
from lambdanets.web.examples import example_images
from lambdanets.web.planning import LayerShape, plan_layer
from lambdanets.web.predictions import ImagePrediction, predict_image
from lambdanets.web.uploads import MAX_BYTES, read_upload

MAX_QUEUE_SIZE = 8  # maximum number of waiting events; more are refused with a message
STATE_SECONDS = 1800  # after which a prediction is removed
CACHE_CLEANUP = (60, 600)  # every 60 s, uploads and images older than 600 s are removed
MAX_SESSIONS = 32  # maximum number of sessions whose predictions are kept
_SHAPE_LABELS = {  # label and explanation
    "batch": ("Images per batch", "computed together"),
    "dim": ("Channels (dim)", "features of each place"),
    "height": ("Height of the map", "places"),
    "width": ("Width of the map", "places"),
    "heads": ("Heads", "divisor of the channels"),
    "query_depth": ("Query depth", "length of a query: k"),
    "scope": ("Scope", "side of the window: odd; 0 for the whole map"),
    "intra_depth": ("Intra-depth", "usually 1; u in the paper"),
}

Models = Mapping[str, Classifier | Detector]
Updates = dict[Any, Any]


def build_page(models: Models) -> gr.Blocks:
    """Return the page for models by name; the first is selected when the page loads."""
    with gr.Blocks(title="lambdanets demo", analytics_enabled=False, delete_cache=CACHE_CLEANUP) as page:
        gr.HTML(texts.INTRODUCTION)
        with gr.Tab("Look at an image"):
            image_tab = _ImageTab(models)
        with gr.Tab("Plan a layer"):
            _add_plan_tab()
        page.load(partial(image_tab.predict_example, 0), image_tab.model, image_tab.outputs, **_EVENT)
    page.state_session_capacity = MAX_SESSIONS
    page.queue(max_size=MAX_QUEUE_SIZE, default_concurrency_limit=1)
    return page


# All events of models share one limit, so that one runs at a time.
_EVENT: dict[str, Any] = {
    "concurrency_id": "model",
    "concurrency_limit": 1,
    "api_visibility": "private",
    "trigger_mode": "always_last",  # of the events that a user triggers while one is processed
}
_QUIET: dict[str, Any] = {**_EVENT, "show_progress": "hidden"}


class _ImageTab:
    """The tab that shows the prediction for an image, and the attention maps of a place in it."""

    def __init__(self, models: Models) -> None:
        self.models = models
        self.examples = {name: example_images(source) for name, source in models.items()}
        first = next(iter(models))
        self.state = gr.State(time_to_live=STATE_SECONDS)
        with gr.Row():
            with gr.Column(min_width=300):
                gr.HTML(texts.CHOOSE)
                self.model = gr.Dropdown(list(models), value=first, label="Model", visible=len(models) > 1)
                self.gallery = gr.Gallery(
                    _thumbnails(self.examples[first]), label="Examples", columns=3, height="auto", allow_preview=False,
                    object_fit="contain", interactive=False, buttons=[], format="png", elem_id="examples",
                )  # fmt: skip
                self.upload = gr.File(label="Your image", height=150, elem_id="upload")
                gr.HTML(texts.LIMITS)
            with gr.Column(min_width=300):
                gr.HTML(texts.PREDICTION)
                self.result = gr.HTML(elem_id="result")
        gr.HTML(texts.WHERE)
        with gr.Row():
            with gr.Column(min_width=300, scale=2):
                self.shown_image = gr.Image(
                    show_label=False, interactive=False, buttons=[], format="png", type="pil", elem_id="shown_image"
                )
                with gr.Row():
                    self.row = gr.Slider(0, 1, step=1, label="Row", buttons=[], min_width=130, elem_id="row")
                    self.column = gr.Slider(0, 1, step=1, label="Column", buttons=[], min_width=130, elem_id="column")
                self.layer = gr.Dropdown(label="Layer", elem_id="layer")
                self.head = gr.Dropdown(label="Head", elem_id="head")
            with gr.Column(min_width=300, scale=3):
                self.maps = gr.HTML(elem_id="maps")
        self.outputs = [
            *(self.state, self.upload, self.result, self.shown_image, self.row, self.column, self.layer, self.head),
            self.maps,
        ]
        place = [self.state, self.layer, self.head, self.row, self.column]
        self.upload.upload(self.predict_upload, [self.model, self.upload], self.outputs, **_EVENT)
        self.gallery.select(self.select_example, self.model, self.outputs, **_EVENT)
        self.model.change(self.change_model, self.model, [self.gallery, *self.outputs], **_EVENT)
        self.shown_image.select(self.on_image_click, place, [*place[2:], self.shown_image, self.maps], **_QUIET)
        for control in (self.row, self.column, self.layer, self.head):
            control.input(self.update_maps, place, [self.head, self.shown_image, self.maps], **_QUIET)

    def predict_upload(self, model: str, path: str) -> Updates:
        try:
            with Path(path).open("rb") as file:
                content = file.read(MAX_BYTES + 1)
            source, name = self.models[model], Path(path).name
            return self._show_prediction(
                predict_image(source, read_upload(content, name, stretch=source.card.stretch), name)
            )
        except InputError as error:
            return self._show_error(error)

    def predict_example(self, index: int, model: str) -> Updates:
        image, caption = self.examples[model][index]
        return self._show_prediction(predict_image(self.models[model], image, caption))

    def select_example(self, model: str, event: gr.SelectData) -> Updates:
        return self.predict_example(int(event.index), model)

    def change_model(self, model: str) -> Updates:
        return {self.gallery: gr.update(value=_thumbnails(self.examples[model])), **self.predict_example(0, model)}

    def on_image_click(
        self, prediction: ImagePrediction | None, layer: str, head: int, row: float, column: float, event: gr.SelectData
    ) -> Updates:
        if prediction is None:
            return self.update_maps(prediction, layer, head, row, column)
        row, column = clicked_pixel(prediction.image, *event.index)
        return {self.row: row, self.column: column, **self.update_maps(prediction, layer, head, row, column)}

    def update_maps(
        self, prediction: ImagePrediction | None, layer: str, head: int, row: float, column: float
    ) -> Updates:
        if prediction is None:
            return {self.maps: texts.error("the image must be chosen again, because it is removed after 30 minutes")}
        if not prediction.layers:
            return {self.maps: texts.NO_LAYERS}
        at = (int(row), int(column))
        count = num_heads(prediction, layer) if layer in prediction.layers else 1
        head = head if head < count else 0
        shown_image = {self.shown_image: marked(prediction.image, at)}
        try:
            maps = texts.maps_html(prediction, attention_maps(prediction, layer, head, at))
        except InputError as error:
            return {**shown_image, self.maps: texts.error(error)}
        choices = [(f"{index + 1} of {count}", index) for index in range(count)]
        return {**shown_image, self.head: gr.update(choices=choices, value=head), self.maps: maps}

    def _show_prediction(self, prediction: ImagePrediction) -> Updates:
        image = prediction.image
        at = (image.height // 2, image.width // 2)
        has_layers = bool(prediction.layers)
        layer = default_layer(prediction) if has_layers else None
        choices = [(_layer_label(prediction, name), name) for name in prediction.layers]
        updates = {
            self.state: prediction,
            self.upload: None,
            self.result: texts.prediction_html(prediction),
            self.shown_image: marked(prediction.image, at if has_layers else None),
            self.row: gr.update(maximum=max(1, image.height - 1), value=at[0]),
            self.column: gr.update(maximum=max(1, image.width - 1), value=at[1]),
            self.layer: gr.update(choices=choices, value=layer),
            self.maps: texts.NO_LAYERS,
        }
        return updates if layer is None else {**updates, **self.update_maps(prediction, layer, 0, *at)}

    def _show_error(self, error: InputError) -> Updates:
        nothing = dict.fromkeys((self.state, self.upload, self.shown_image), None)
        return {**nothing, self.result: texts.error(error), self.maps: ""}


def _thumbnails(examples: list[tuple[Image.Image, str]]) -> list[tuple[Image.Image, str]]:
    return [(marked(image, None), caption) for image, caption in examples]


def _layer_label(prediction: ImagePrediction, name: str) -> str:
    assert prediction.explanation is not None
    height, width = prediction.explanation.calls[name].sides
    index = f"{prediction.layers.index(name) + 1} of {len(prediction.layers)}"
    return f"{index}: {height} x {width} places ({texts.short_name(name)})"


def _add_plan_tab() -> None:
    """Add the tab that shows the costs of a layer."""
    gr.HTML(texts.PLAN)
    defaults = LayerShape()
    inputs = []
    options = list(_SHAPE_LABELS)
    for names in (options[:4], options[4:]):
        with gr.Row():
            for name in names:
                label, info = _SHAPE_LABELS[name]
                number = gr.Number(getattr(defaults, name), label=label, info=info, precision=0, min_width=140)
                number.elem_id = f"plan-{name}"
                inputs.append(number)
    result = gr.HTML(_plan_html(*(getattr(defaults, name) for name in _SHAPE_LABELS)), elem_id="plan")
    for number in inputs:
        number.input(
            _plan_html, inputs, result, api_visibility="private", show_progress="hidden", trigger_mode="always_last"
        )


def _plan_html(*values: int) -> str:
    try:
        return texts.plan_html(plan_layer(LayerShape(**dict(zip(_SHAPE_LABELS, values, strict=True)))))
    except ValueError as error:  # InputError, or of the operations
        return texts.error(error)
