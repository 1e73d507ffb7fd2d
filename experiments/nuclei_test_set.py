"""Cell nuclei: AP of detectors and of a thresholding baseline on a held-out test set.

The test set is not used for model selection.

    python experiments/nuclei_test_set.py split NUCLEI FOLDER       write train, validation and test .json and .tar
    python experiments/nuclei_test_set.py train FOLDER WORK         train the detector and its convolution baseline
    python experiments/nuclei_test_set.py score FOLDER MODEL...     evaluate run folders or packaged models
    python experiments/nuclei_test_set.py mosaic FOLDER MODEL       tiled inference on 8,000 x 8,000 pixels
    python experiments/nuclei_test_set.py intensities FOLDER MODEL  the same images, darker, brighter and with 16 bits
    python experiments/nuclei_test_set.py [--page PAGE]             write the page from results

Images of each size are sorted by the SHA-256 of their names; of 12, two go to the test set and one to the validation
set. The baseline needs no training: Otsu thresholding followed by a watershed from the maxima of the distance to the
background, with scikit-image. Its objects have equal scores, so its AP has no ranking.
"""

import dataclasses
import hashlib
import io
import json
import resource
import subprocess
import sys
import tarfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pages import RESULTS, Script, replace_section
from PIL import Image
from scipy.ndimage import distance_transform_edt
from skimage.feature import peak_local_max
from skimage.filters import gaussian, threshold_otsu
from skimage.measure import label
from skimage.morphology import remove_small_objects
from skimage.segmentation import watershed
from tifffile import imwrite

import lambdanets as ln
from lambdanets.data.coco.images import AnnotatedImages, open_annotated
from lambdanets.data.coco.loader import image_to_tensor
from lambdanets.data.images import read_image
from lambdanets.inference.coco_scores import Result, coco_results, evaluate
from lambdanets.inference.detections import Detections
from lambdanets.inference.detector import DetectionEvaluator
from lambdanets.inference.tiles import detect_tiled
from lambdanets.provenance import provenance
from lambdanets.records import write_json
from lambdanets.text_tables import markdown_table
from lambdanets_lab.results import read_results

SPLITS = ("test", "test", "validation", *["train"] * 9)
COLUMNS = ("AP", "AP50", "AP75", "APs", "APm")
EPOCHS = 16
INFERENCE = {"image_size": 448, "proposals": 1000, "max_detections": 200}  # chosen on the validation images
MIN_AREA, MIN_DISTANCE, SIGMA = 20, 5, 1.0  # of the baseline, in pixels; common values, not tuned
# Sides of the mosaic, of the crops in which nuclei are counted separately, and of the images, which no crop cuts.
MOSAIC_SIDE, CROP_SIDE, IMAGE_SIDE = 8000, 2000, 250


def main() -> None:
    parser = Script(__doc__, "detection_results.md", RESULTS / "epyc-2-cores/nuclei_test_set.json")
    parser.add_argument("action", choices=["split", "train", *MEASUREMENTS, "page"], nargs="?", default="page")
    parser.add_argument("paths", type=Path, nargs="*")
    options = parser.parse_args()
    if options.action == "split":
        split(*options.paths)
    elif options.action == "train":
        for recipe in ("nuclei", "nuclei_convolution"):
            subprocess.run(training_command(recipe, options.paths[0], options.paths[1] / recipe), check=True)
    elif options.action in MEASUREMENTS:
        result = MEASUREMENTS[options.action](*options.paths)
        write_json(options.out, (read_results(options.out) if options.out.exists() else {}) | result)
    replace_section(options.page, "nuclei_test_set", write_section(read_results(options.out)))


def split(data: Path, folder: Path) -> None:
    """Write the training, validation and test set as COCO instances files and tars."""
    folder.mkdir(parents=True, exist_ok=True)
    images: list[tuple[str, dict[str, Any]]] = []
    annotations, files = defaultdict(list), {}
    for source in ("train", "val"):
        content = json.loads((data / f"instances_{source}.json").read_text())
        for annotation in content["annotations"]:
            annotations[source, annotation["image_id"]].append(annotation)
        images += [(source, image) for image in content["images"]]
        with tarfile.open(data / f"{source}.tar") as tar:
            files |= {Path(member.name).name: tar.extractfile(member).read() for member in tar if member.isfile()}
    images.sort(key=lambda pair: hashlib.sha256(pair[1]["file_name"].encode()).digest())
    counts, splits = defaultdict(int), defaultdict(list)
    for source, image in images:
        size = image["height"], image["width"]
        splits[SPLITS[counts[size] % len(SPLITS)]].append((source, image))
        counts[size] += 1
    for name, selected in splits.items():
        objects: list[dict[str, Any]] = []
        with tarfile.open(folder / f"{name}.tar", "w") as tar:
            for number, (source, image) in enumerate(selected, 1):
                first_id = len(objects) + 1
                image_annotations = annotations[source, image["id"]]
                objects += [each | {"image_id": number, "id": first_id + i} for i, each in enumerate(image_annotations)]
                info = tarfile.TarInfo(image["file_name"])
                info.size = len(files[image["file_name"]])
                tar.addfile(info, io.BytesIO(files[image["file_name"]]))
        renumbered = [image | {"id": number} for number, (_, image) in enumerate(selected, 1)]
        coco = {"images": renumbered, "annotations": objects, "categories": content["categories"]}
        (folder / f"{name}.json").write_text(json.dumps(coco))
        print(f"{name}: {len(renumbered)} images, {len(objects)} nuclei")


def training_command(recipe: str, data: Path, run: Path) -> list[str]:
    """The training command of a run."""
    return [
        *(sys.executable, "-m", "lambdanets", "train", recipe, "--epochs", str(EPOCHS), "--run", str(run)),
        *("--data", str(data / "train.json"), "--images", str(data / "train.tar")),
        *("--validation-data", str(data / "validation.json"), "--validation-images", str(data / "validation.tar")),
    ]


def evaluate_models(data: Path, *models: Path) -> dict[str, Any]:
    """Evaluate models and the thresholding baseline on the test set."""
    test = open_annotated(data / "test.json", data / "test.tar")
    rows = []
    for model in models:
        detector = load_detector(model)
        started = time.perf_counter()
        scores = DetectionEvaluator(detector, test).evaluate().scores.summary()
        seconds = (time.perf_counter() - started) / len(test)
        parameters = sum(x.numel() for x in detector.model.parameters())
        run = model / "result.json"
        training = json.loads(run.read_text())["seconds"] if run.exists() else None
        rows.append({"model": model.name, "parameters": parameters, "training_seconds": training})
        rows[-1] |= {"seconds_per_image": seconds, **scores}
        print(rows[-1], flush=True)
    started = time.perf_counter()
    scores = evaluate(test.annotations.to_coco(), threshold_all(test)).summary()
    seconds = (time.perf_counter() - started) / len(test)
    rows.append({"model": "thresholding", "parameters": None, "training_seconds": None})
    rows[-1] |= {"seconds_per_image": seconds, **scores}
    print(rows[-1], flush=True)
    num_nuclei = sum(len(each.objects) for each in test.annotations.images)
    return {"images": len(test), "nuclei": num_nuclei, "rows": rows, **provenance()}


def load_detector(model: Path) -> ln.Detector:
    """Load a detector with the inference options of the model in the package, which runs do not have."""
    detector = ln.load(model, device="cpu")
    assert isinstance(detector, ln.Detector)
    card = dataclasses.replace(detector.card, **INFERENCE)
    return ln.Detector.from_weights(card, detector.model.state_dict(), str(model), torch.device("cpu"))


def threshold_all(images: AnnotatedImages) -> list[Result]:
    """Segment all images by Otsu's threshold and a watershed; return COCO results with the score 1."""
    results: list[Result] = []
    category = images.annotations.categories[0]
    for index in range(len(images)):
        image, annotated = images.load(index)
        labels = threshold(np.asarray(image.convert("L"), np.float64))
        numbers = np.arange(1, labels.max() + 1)
        masks = torch.from_numpy(labels[None] == numbers[:, None, None])[:, None].float()
        corners = [[x.min(), y.min(), x.max() + 1, y.max() + 1] for y, x in (np.nonzero(labels == i) for i in numbers)]
        detections = {
            "boxes": torch.tensor(corners, dtype=torch.float32).reshape(-1, 4),
            "labels": torch.ones(len(numbers), dtype=torch.int64),
            "scores": torch.ones(len(numbers)),
            "masks": masks.reshape(-1, 1, *labels.shape),
        }
        results += coco_results(Detections.from_outputs(detections, ("nucleus",)), annotated.id, [category.id])
    return results


def threshold(pixels: np.ndarray) -> np.ndarray:
    """Return a label image (H, W): nuclei are darker than the background if most of the image is bright."""
    smooth = gaussian(pixels, SIGMA)
    foreground = smooth > threshold_otsu(smooth)
    if foreground.mean() > 0.5:
        foreground = ~foreground
    foreground = remove_small_objects(foreground, max_size=MIN_AREA)
    distance = distance_transform_edt(foreground)
    peaks = peak_local_max(distance, min_distance=MIN_DISTANCE, labels=label(foreground))
    markers = np.zeros(pixels.shape, int)
    markers[tuple(peaks.T)] = np.arange(1, len(peaks) + 1)
    return watershed(-distance, markers, mask=foreground)


def count_mosaic(data: Path, model: Path) -> dict[str, Any]:
    """Count the nuclei in a mosaic of test images and in its crops; return counts, time and peak memory."""
    test = open_annotated(data / "test.json", data / "test.tar")
    images = [test.load(index)[0].convert("RGB") for index in range(len(test))]
    images = [image for image in images if image.size == (256, 256) and np.asarray(image).mean() < 100]
    generator = np.random.default_rng(0)
    mosaic = Image.new("RGB", (MOSAIC_SIDE, MOSAIC_SIDE))
    for top in range(0, MOSAIC_SIDE, IMAGE_SIDE):
        for left in range(0, MOSAIC_SIDE, IMAGE_SIDE):
            image = images[generator.integers(len(images))]
            mosaic.paste(image.crop((0, 0, IMAGE_SIDE, IMAGE_SIDE)), (left, top))
    detector = ln.load(model, device="cpu")
    assert isinstance(detector, ln.Detector)
    tile_size = detector.card.tile_size or 256
    started = time.perf_counter()
    num_nuclei = len(detect_tiled(detector, mosaic, tile_size, batch_size=4).above(0.5))
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    sum_over_crops = 0
    for top in range(0, MOSAIC_SIDE, CROP_SIDE):
        for left in range(0, MOSAIC_SIDE, CROP_SIDE):
            crop = mosaic.crop((left, top, left + CROP_SIDE, top + CROP_SIDE))
            sum_over_crops += len(detect_tiled(detector, crop, tile_size, batch_size=4).above(0.5))
    result = {"side": MOSAIC_SIDE, "crop_side": CROP_SIDE, "nuclei": num_nuclei, "sum_over_crops": sum_over_crops}
    result |= {"seconds": seconds, "peak": peak}
    print(result)
    return {"mosaic": result, **provenance()}


def score_intensities(data: Path, model: Path) -> dict[str, Any]:
    """Evaluate the test images with changed intensities, with and without stretching."""
    test = open_annotated(data / "test.json", data / "test.tar")
    detector = ln.load(model, device="cpu")
    assert isinstance(detector, ln.Detector)
    rows = []
    for name, change in INTENSITIES.items():
        rows.append({"images": name})
        for stretch in (True, False):
            results: list[Result] = []
            for index in range(len(test)):
                image, annotated = test.load(index)
                content = io.BytesIO()
                pixels = np.asarray(image)
                imwrite(content, change(pixels.astype(int)), photometric="rgb" if pixels.ndim == 3 else "minisblack")
                tensor = image_to_tensor(read_image(content, name, stretch=stretch))
                (objects,) = detector.infer_tensors([tensor])
                results += coco_results(objects, annotated.id, detector.card.category_ids)
            truth = test.annotations.to_coco()
            summary = evaluate(truth, results, max_detections=detector.card.max_detections).summary()["segm"]
            rows[-1]["stretched" if stretch else "as stored"] = {name: summary[name] for name in ("AP", "AP50")}
        print(rows[-1], flush=True)
    return {"intensities": {"model": model.name, "rows": rows, **provenance()}}


# What is done to the intensities, 0 to 255, of the test images.
INTENSITIES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "unchanged": lambda x: x.astype(np.uint8),
    **{f"+{n}": lambda x, n=n: (x + n).clip(0, 255).astype(np.uint8) for n in (5, 20, 40, 60)},
    "16 bits, x 257": lambda x: (x * 257).astype(np.uint16),
    "16 bits, x 12 + 100": lambda x: (x * 12 + 100).astype(np.uint16),
}


MEASUREMENTS = {"score": evaluate_models, "mosaic": count_mosaic, "intensities": score_intensities}
NAMES = {
    "nuclei": "lambda layers",
    "nuclei_convolution": "3x3 convolutions",
    "thresholding": "Otsu's threshold and watershed",
}


def write_section(results: dict[str, Any]) -> str:
    """The text between the page's markers."""
    rows = []
    for row in results["rows"]:
        parameters = "" if row["parameters"] is None else f", {row['parameters'] / 1e6:.2f} M parameters"
        for iou_type, kind in (("bbox", "boxes"), ("segm", "masks")):
            cells = ["-" if row[iou_type][c] is None else f"{100 * row[iou_type][c]:.1f}" for c in COLUMNS]
            rows.append([f"{kind}, {NAMES[row['model']]}{parameters}", *cells])
    lines = [
        f"{results['images']} test images with {results['nuclei']:,} nuclei, in percent; one seed:",
        "",
        markdown_table(["", *COLUMNS], *rows),
    ]
    if intensities := results.get("intensities"):
        cells = [
            [row["images"], *(f"{100 * row[way][c]:.1f}" for way in ("stretched", "as stored") for c in ("AP50", "AP"))]
            for row in intensities["rows"]
        ]
        names = ["AP50", "AP", "AP50, not stretched", "AP, not stretched"]
        lines += [
            "",
            "Mask AP of the model in the package on the same images with other intensities, saved as TIFF files:",
            "",
            markdown_table(["", *names], *cells),
        ]
    if mosaic := results.get("mosaic"):
        lines += [
            "",
            f"Tiled inference finds {mosaic['nuclei']:,} nuclei in a mosaic of test images of {mosaic['side']:,} x "
            f"{mosaic['side']:,} pixels, in {mosaic['seconds'] / 60:.0f} minutes with a peak of "
            f"{mosaic['peak'] / 2**30:.1f} GiB. The sum over crops of {mosaic['crop_side']:,} x "
            f"{mosaic['crop_side']:,} pixels, each with tiled inference, is {mosaic['sum_over_crops']:,}.",
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
