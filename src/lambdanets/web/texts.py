"""The text of the page, and results as HTML. Names from models and files are escaped."""

import base64
import html
import io
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.colors import to_hex
from PIL import Image

from lambdanets.interpretability import figures
from lambdanets.ops.position.plan import WORKSPACE_LIMIT_BYTES, Plan
from lambdanets.terminal import printable
from lambdanets.web.attention import AttentionMaps
from lambdanets.web.predictions import DetectedObjects, ImagePrediction
from lambdanets.web.uploads import MAX_BYTES, MAX_PIXELS


def escape(text: str) -> str:
    """Return text as HTML; names of files and classes may contain control characters and invalid UTF-8."""
    return html.escape(printable(text))


# of the bars, as the ends of the color scale of the map of shares
_CONTENT_COLOR, _POSITION_COLOR = (to_hex(matplotlib.colormaps[figures.COLORS](end)) for end in (0.0, 1.0))
CSS = """
.gradio-container { max-width: 1180px !important; }
.ln-maps { display: grid; grid-template-columns: 1fr 1fr; gap: 16px; margin: 12px 0; }
.ln-maps figure { margin: 0; min-width: 0; }
.ln-maps img, .ln-overlay { width: 100%; border-radius: 4px; }
.ln-maps figcaption { font-size: 0.9em; line-height: 1.35; }
.ln-scale { height: 10px; border-radius: 3px; }
.ln-ends { display: flex; justify-content: space-between; font-size: 0.8em; }
.ln-bars { width: 100%; }
.ln-bars, .ln-bars tr, .ln-bars td { border: none !important; }
.ln-bars td { padding: 2px 8px 2px 0 !important; overflow-wrap: anywhere; }
.ln-bars td:last-child { width: 55%; }
.ln-bar { background: #64748b; height: 14px; border-radius: 3px; min-width: 1px; }
.ln-two { display: flex; height: 14px; border-radius: 3px; overflow: hidden; background: CONTENT_COLOR; }
.ln-two div { background: POSITION_COLOR; }
.ln-table { overflow: auto; max-height: 320px; border: 1px solid #94a3b8; border-radius: 4px; }
.ln-table::-webkit-scrollbar { width: 12px; height: 12px; }
.ln-table::-webkit-scrollbar-track { background: #94a3b833; }
.ln-table::-webkit-scrollbar-thumb { background: #64748b; border-radius: 6px; }
.ln-table tr:first-child { position: sticky; top: 0; background: var(--body-background-fill); }
.ln-table table { border-collapse: collapse; font-size: 0.9em; font-variant-numeric: tabular-nums; }
.ln-table td, .ln-table th { padding: 2px 10px; text-align: right; white-space: nowrap; }
.ln-table td:first-child, .ln-table th:first-child { text-align: left; }
.ln-chosen { font-weight: bold; background: #64748b33; }
#examples .grid-wrap { min-height: 0; }
.ln-links a { display: inline-block; margin: 4px 8px 4px 0; padding: 6px 12px; border: 1px solid; border-radius: 6px; }
.ln-error { border-left: 4px solid #dc2626; padding: 6px 12px; }
.ln-headline { font-size: 1.3em; }
""".replace("CONTENT_COLOR", _CONTENT_COLOR).replace("POSITION_COLOR", _POSITION_COLOR)
INTRODUCTION = """<h1>See what a lambda network sees</h1>
<p>A lambda layer is a part of a neural network. For each place of an image, it computes a weighted sum over other
places, near and far. The weight of another place depends on the place that is computed, and either on <b>what the
other place shows</b> (content) or on its <b>direction and distance</b> (position). This page shows both. Images are
only sent to the computer on which <code>lambdanets demo</code> runs, usually your own.</p>"""
CHOOSE = "<h2>1. Choose an image</h2>"
LIMITS = f"""<p>PNG, JPEG, TIFF, GIF, BMP or WebP, up to {MAX_BYTES // 2**20} MB and {MAX_PIXELS // 1_000_000} million
pixels.</p>"""
PREDICTION = """<h2>2. What the model finds</h2>
<p>Models make mistakes, above all on images unlike their training images: compare the result with the image.</p>"""
WHERE = """<h2>3. Where it looks</h2>
<p>Click a place in the image, or choose its row and column, counted from 0. The maps show which places one layer uses
to compute its output <i>at the mark</i>. That output is one step on the way to the result: the maps show how far and in
which pattern the model looks, not why it chose a class or an object. A network has several lambda layers, and each has
several heads: parallel copies that have learned different weights.</p>"""
PLAN = f"""<h2>What a lambda layer costs</h2>
<p>For developers. The position part of a lambda layer can be computed by several algorithms with the same result. Which
one is fastest depends on the shape. Type the size of a layer to see the predicted time of each one on this machine's
CPU. The layer uses the fastest one whose memory is at most {WORKSPACE_LIMIT_BYTES / 2**30:g} GiB.</p>"""
PLAN_NOTE = """<p>Forward: computing the result. Backward: computing the gradients for training, without the forward
pass; some algorithms use the same backward pass. Fewer operations can take longer, since processors execute some kinds
of operations faster. Memory: needed in addition to the input and the result. The content part is not included: it costs
the same with every algorithm. The names are values of the argument <code>algorithm</code> of
<code>lambdanets.LambdaLayer2d</code>.</p>"""
NO_LAYERS = "<p>This model has no lambda layer on maps, so there is nothing to show here.</p>"


def error(message: object) -> str:
    """Return a sentence about a user's mistake."""
    text = str(message)
    return f'<p class="ln-error" role="alert">{escape(text[:1].upper() + text[1:])}.</p>'


def prediction_html(prediction: ImagePrediction) -> str:
    """Return classes with probabilities, or the number of objects, a table and downloads."""
    width, height = prediction.image.size
    kind = "gray" if prediction.image.mode == "L" else "color"
    source = f"<p>{escape(prediction.name)}: {width} x {height} pixels, {kind}</p>"
    if prediction.top is not None:
        name, probability = prediction.top[0]
        rows = "".join(
            f"<tr><td>{escape(name)}</td><td>{_percent(p)}</td><td>"
            f'<div class="ln-bar" style="width: {100 * p:.1f}%"></div></td></tr>'
            for name, p in prediction.top
        )
        headline = f'<p class="ln-headline">Class <b>{escape(name)}</b>, with probability {_percent(probability)}</p>'
        return f'{headline}<table class="ln-bars">{rows}</table>{source}'
    assert prediction.objects is not None
    return _objects_html(prediction.objects) + source


def _objects_html(objects: DetectedObjects) -> str:
    count = len(objects.rows)
    classes = sorted({row["class"] for row in objects.rows})
    of_class = f" of class {escape(classes[0])}" if len(classes) == 1 else ""
    headline = f'<p class="ln-headline"><b>{count}</b> {"object" if count == 1 else "objects"}{of_class} found</p>'
    links = "".join(
        f'<a download="{name}" href="{_data_url(content, _MEDIA_TYPES[name.rpartition(".")[2]])}">{name}</a>'
        for name, content in objects.files.items()
    )
    columns = ("object", *(("class",) if len(classes) > 1 else ()), "score", "area", "row", "column", "diameter")
    body = [[_cell(column, row[column]) for column in columns] for row in objects.rows]
    heading = "<p>All objects; scroll for more:</p>" if count > _SHOWN_ROWS else ""
    table = heading + _table(columns, body) if count else ""
    reduced = objects.overlay.copy()
    reduced.thumbnail((_OVERLAY_SIDE, _OVERLAY_SIDE))
    shown_image = _img(reduced, "the image with the outlines of all objects", "ln-overlay")
    return f'{headline}{shown_image}<p class="ln-links">Download: {links}</p>{_DOWNLOADS}{table}'


def maps_html(prediction: ImagePrediction, maps: AttentionMaps) -> str:
    """Return the attention maps of a place with explanations."""
    row, column = maps.at
    share = round(100 * maps.share)
    signed = _scale(figures.SIGNED_COLORS, f"-{maps.limit:.2g}", "0: no tint", f"+{maps.limit:.2g}")
    sides = f"{maps.sides[0]} x {maps.sides[1]}"
    field_text = f"How strongly each pixel changes the output at the mark. {_ALL if maps.field_is_whole else _FRAMED}"
    weaker = f"{10**figures.DECADES:,} times weaker"
    panels = (
        (maps.content, "Content", "Weight of each place because of what it shows.", signed),
        (maps.position, "Position", "Weight of each place because of direction and distance from the mark.", signed),
        (
            *(maps.share_map, "Share of position", "How much of the output at each place comes from position."),
            _scale(figures.COLORS, "0% (only content)", "100% (only position)"),
        ),
        (maps.field, "Receptive field", field_text, _scale(figures.COLORS, weaker, "strongest")),
    )
    panels_html = "".join(
        f"<figure>{_img(image, f'{title} map')}{scale}<figcaption><b>{title}.</b> {text}</figcaption></figure>"
        for image, title, text, scale in panels
    )
    window = f"a window of {maps.window[0]} x {maps.window[1]} places around it" if maps.window else "all places"
    field_sides = f"{maps.field_sides[0]} x {maps.field_sides[1]}"
    bars = "".join(
        f"<tr><td>{escape(short_name(layer))}</td><td>{_percent(mean)}</td><td>"
        f'<div class="ln-two"><div style="width: {100 * mean:.1f}%"></div></div></td></tr>'
        for layer, mean in prediction.shares.items()
    )
    return f"""<p class="ln-headline">At row {row}, column {column}, <b>{share}%</b> of the output comes from position
and <b>{100 - share}%</b> from content.</p>
<p>Both parts sum what earlier layers have computed from the image. Only the weights differ. Both depend on what is at
the mark; position weights then depend on direction and distance, content weights on what the other places show.</p>
<div class="ln-maps">{panels_html}</div>
<h3>How to read the maps</h3>
<ul>
<li>This layer divides the image into {sides} places, which are the squares of the maps. Its output for the place of the
mark is a weighted sum over all places with content weights, plus one over {window} with position weights.</li>
<li><b>Red</b> places are added and <b>blue</b> ones are subtracted; this does not mean for or against a class. Places
without a tint have weights near 0: there, the image itself is seen. Content and position have the same color scale, so
you can compare them.</li>
<li>The content map often has no visible tint, because its weights are small. Here the largest one is
{maps.largest_content:.2g}, and that of position is {maps.largest_position:.2g}.</li>
<li><b>Share of position</b> = position / (position + content). The output is a list of numbers, a vector, which is the
sum of a vector by position and one by content; here, each stands for its length. All heads are counted.</li>
<li>The <b>receptive field</b> is how much the output at the mark changes if a pixel of the network's input changes,
which is the image resized to {field_sides} pixels. 90% of all change comes from {_percent(maps.area)} of them. Each
quarter of the color bar is a factor of 10.</li>
</ul>
<h3>Share of position in each layer, averaged over the image</h3>
<table class="ln-bars">{bars}</table>
<p>{_legend(_POSITION_COLOR)} position {_legend(_CONTENT_COLOR)} content</p>"""


def plan_html(plan: Plan) -> str:
    """Return the predicted costs of all algorithms as a table, and the chosen ones."""
    rows, classes = [], []
    for name, cost in plan.costs.items():
        uses = [use for use, chosen in (("forward", plan.chosen), ("backward", plan.backward)) if chosen == name]
        classes.append("ln-chosen" if uses else "")
        if cost is None:
            reason = "only on GPUs" if name == "fused" else "not for this shape"
            rows.append([f"{name} ({reason})", "", "", "", "", ""])
            continue
        seconds = (cost.seconds, cost.backward_seconds)
        memory = f"{max(cost.workspaces) / 2**20:,.1f} MiB"
        rows.append([name, " and ".join(uses), f"{cost.operations / 1e9:,.3f}", memory, *map(_milliseconds, seconds)])
    columns = ("algorithm", "chosen for", "billion operations", "memory", "forward", "backward")
    chosen = escape(plan.chosen)
    if plan.backward != plan.chosen:
        chosen += f"</b> for the forward and <b>{escape(plan.backward)}</b> for the backward pass<b>"
    return f'<p class="ln-headline">Chosen algorithm: <b>{chosen}</b></p>{_table(columns, rows, classes)}{PLAN_NOTE}'


def short_name(layer: str) -> str:
    """Return the name of a layer without the wrapper of a detector."""
    return layer.removeprefix("backbone.network.")


_DOWNLOADS = """<p>The colors of the outlines only separate objects. labels.png is for microscopy software such as Fiji:
the pixels of object 1 have the value 1, and so on, so it looks black until you increase the contrast. objects.csv also
has the boxes and intensities. The score is the model's confidence, from 0 to 1; row and column are the center; the
diameter is that of a circle of the same area. Lengths are in pixels, areas in square pixels.</p>"""
_ALL = "Pixels in yellow matter most."
_FRAMED = "Pixels outside of the red frame have none."
_SHOWN_ROWS = 12  # of a table, without scrolling
_OVERLAY_SIDE = 800  # the file to download has the full size
_MEDIA_TYPES = {"png": "image/png", "csv": "text/csv", "tif": "image/tiff"}


def _data_url(content: bytes, media_type: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def _img(image: Image.Image, description: str, name: str = "") -> str:
    content = io.BytesIO()
    image.save(content, "JPEG", quality=90, subsampling=0)  # ten times as fast as PNG
    return f'<img class="{name}" alt="{escape(description)}" src="{_data_url(content.getvalue(), "image/jpeg")}">'


def _scale(colors: str, *labels: str) -> str:
    """Return a color bar with labels from its low to its high end."""
    stops = ", ".join(to_hex(matplotlib.colormaps[colors](step / 8)) for step in range(9))
    spans = "".join(f"<span>{label}</span>" for label in labels)
    gradient = f'<div class="ln-scale" style="background: linear-gradient(to right, {stops})"></div>'
    return f'{gradient}<div class="ln-ends">{spans}</div>'


def _legend(color: str) -> str:
    return f'<span style="color: {color}">■</span>'


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], classes: Sequence[str] = ()) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        f'<tr class="{classes[index] if classes else ""}">{"".join(f"<td>{escape(cell)}</td>" for cell in row)}</tr>'
        for index, row in enumerate(rows)
    )
    return f'<div class="ln-table" tabindex="0"><table><tr>{head}</tr>{body}</table></div>'


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f} ms" if seconds >= 0.1 else f"{1e3 * seconds:.3g} ms"


def _cell(column: str, value: Any) -> str:
    digits = {"score": 2, "area": 0}.get(column, 1)
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}%"
