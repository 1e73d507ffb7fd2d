"""`lambdanets.load`, `predict` and `evaluate`, for classifiers and detectors, on every type of image."""

import shutil
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import lambdanets as ln
from test_threads import make_classifier, make_detector, make_segmenter, result
from training.teachers import write_teacher

CLASSES = ("dark", "light")
MODELS = {"classification": ln.Classifier, "detection": ln.Detector, "segmentation": ln.Segmenter}


@pytest.fixture(scope="module")
def pixels():
    """An RGB image of 13 x 9 pixels."""
    return np.random.default_rng(1).integers(0, 256, (9, 13, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return ln.load(write_teacher(tmp_path_factory.mktemp("classifier") / "teacher", CLASSES), device="cpu")


@pytest.fixture(scope="session")
def detector(trained_detector):
    return ln.load(trained_detector / "run", device="cpu")


@pytest.fixture(scope="session")
def segmenter(trained_segmenter):
    return ln.load(trained_segmenter / "run", device="cpu")


@pytest.fixture(scope="session")
def photo(trained_detector):
    """An image in which the detector finds objects."""
    return sorted((trained_detector / "digits/train").iterdir())[1]


def make_inputs(pixels, folder):
    """Return one image as every type of input that predict accepts, by name."""
    image, tensor = Image.fromarray(pixels), torch.from_numpy(pixels).permute(2, 0, 1)
    image.save(folder / "image.png")
    rotated = image.transpose(Image.Transpose.ROTATE_90)
    rotated.getexif()[0x0112] = 6  # the EXIF orientation that rotates it back
    rotated.save(folder / "rotated.png", exif=rotated.getexif())
    rotated.convert("RGBA").save(folder / "rotated_alpha.png", exif=rotated.getexif())
    return {
        "string": str(folder / "image.png"),
        "path": folder / "image.png",
        "path of a rotated image": folder / "rotated.png",
        "Pillow image": image,
        "opened Pillow image": Image.open(folder / "image.png"),
        "rotated Pillow image": Image.open(folder / "rotated.png"),
        "Pillow image with alpha": image.convert("RGBA"),
        "rotated Pillow image with alpha": Image.open(folder / "rotated_alpha.png"),
        "array": pixels,
        "float array": pixels / 255,
        "batch of one array": pixels[None],
        "tensor": tensor,
        "float tensor": tensor / 255,
        "batch of one tensor": tensor[None],
        "list": [pixels],
        "generator": (array for array in [pixels]),
    }


@pytest.mark.parametrize("task", ["classifier", "detector", "segmenter"])
def test_predictions_are_equal_for_all_input_types(task, photo, tmp_path, request):
    model, pixels = request.getfixturevalue(task), np.array(Image.open(photo).convert("RGB"))
    (expected,) = model.predict(photo)
    assert result(expected)[-1]
    for name, image in make_inputs(pixels, tmp_path).items():
        (actual,) = model.predict(image)
        assert result(actual) == result(expected), name


def test_predict_applies_the_preprocessing_of_the_model_card(classifier, pixels):
    preprocessed = classifier.card.preprocessing.transform()(Image.fromarray(pixels))
    with torch.inference_mode():
        expected = classifier.model(preprocessed[None])[0].softmax(0)
    torch.testing.assert_close(classifier.predict(pixels)[0].probabilities, expected)


@pytest.mark.parametrize("make", [make_classifier, make_detector, make_segmenter])
def test_predictions_do_not_depend_on_mode_and_dtype(make, pixels):
    torch.manual_seed(0)
    model = make()
    expected = model.predict(pixels)[0]
    model.model.train()  # as between two epochs of one's own training loop
    frozen = next(module for module in model.model.modules() if isinstance(module, nn.BatchNorm2d)).eval()
    state = {name: tensor.clone() for name, tensor in model.model.state_dict().items()}
    assert result(model.predict(pixels)[0]) == result(expected)
    assert {module.training for module in model.model.modules() if module is not frozen} == {True}
    assert not frozen.training
    assert all(torch.equal(state[name], tensor) for name, tensor in model.model.state_dict().items())
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        model.model.to(dtype)
        actual = model.predict(pixels)[0]
        floats = "scores" if hasattr(actual, "scores") else "probabilities"
        assert getattr(actual, floats).dtype == torch.float32
        torch.testing.assert_close(getattr(actual, floats), getattr(expected, floats), atol=0.1, rtol=0)


@pytest.mark.parametrize("make", [make_classifier, make_detector, make_segmenter])
def test_predict_rejects_outputs_that_overflow(make, pixels):
    model = make()
    is_detector = isinstance(model, ln.Detector)
    last = model.model.roi_heads.box_predictor.cls_score if is_detector else model.model.get_classifier()
    nn.init.constant_(last.weight, 3e38)
    with pytest.raises(ValueError, match=r"outputs of .* must be finite, got NaN or inf"):
        model.predict(pixels)


def test_predict_without_images_returns_an_empty_list(classifier, detector):
    for images in ([], (), np.empty((0, 4, 4, 3), np.uint8), torch.empty(0, 3, 4, 4)):
        assert classifier.predict(images) == detector.predict(images) == []


def test_results_have_class_names_and_a_short_repr(classifier, detector, pixels, photo):
    (prediction,) = classifier.predict(pixels)
    best, second = prediction.top(5)
    assert prediction.top(1) == [best] == [(prediction.class_name, prediction.confidence)]
    assert best[1] >= second[1]
    assert {best[0], second[0]} == set(CLASSES)
    assert repr(prediction).startswith(f"Prediction({best[0]} ")
    (detections,) = detector.predict(photo)
    assert detections.boxes.shape == (len(detections), 4)
    assert detections.masks.shape == (len(detections), *np.asarray(Image.open(photo)).shape[:2])
    assert detections.masks.dtype == torch.bool
    assert detections.class_names == tuple(detector.classes[label - 1] for label in detections.labels.tolist())
    median = float(detections.scores.median())
    confident = detections.above(median)
    assert 0 < len(confident) == len(confident.masks) == int((detections.scores >= median).sum())
    assert repr(confident).startswith(f"Detections({len(confident)} objects, ")


ZEROS = np.zeros((4, 4, 3), np.uint8)
EXPECTED = "a path, a Pillow image, a NumPy array, a tensor, or a list of them"
UNREADABLE = "cannot read the image images: "
INVALID = [
    (5, f"images must be {EXPECTED}, got 5"),
    ({"a": ZEROS}, rf"images must be {EXPECTED}, got \{{'a': "),
    ([ZEROS, None], rf"images\[1\] must be {EXPECTED}, got None"),
    (ZEROS.astype(np.int32), f"{UNREADABLE}its dtype must be uint8, .*, got int32"),
    (ZEROS[..., 0].astype(np.int8), f"{UNREADABLE}its dtype must be uint8, .*, got int8"),
    (ZEROS[..., 0].astype(np.int64), f"{UNREADABLE}its dtype must be uint8, .*, got int64"),
    ([ZEROS[None]], r"images\[0\] must have the shape \(H, W\) or \(H, W, C\) .*, got \(1, 4, 4, 3\)"),
    (np.zeros((3, 8, 6)), r"images must have the shape \(H, W\) or \(H, W, C\) with 1 to 4 channels, got \(3, 8, 6\)"),
    (torch.zeros(8, 6, 3), r"images must have the shape \(H, W\) or \(C, H, W\) with 1 to 4 channels, got \(8, 6, 3\)"),
    (torch.zeros(3, 4, 4).long(), f"{UNREADABLE}its dtype must be uint8, .*, got int64"),
    (np.full((4, 4, 3), 255.0), rf"{UNREADABLE}its floats must be in 0..1, got 255 .*; divide .* such as 255"),
    (torch.full((3, 4, 4), float("nan")), f"{UNREADABLE}its floats must be in 0..1, got nan"),
    ("nowhere.png", "cannot read the image nowhere.png: there is no such file"),
    ([Image.new("F", (4, 4), 9.0)], r"cannot read the image images\[0\]: its floats must be in 0..1"),
]


@pytest.mark.parametrize(("images", "message"), INVALID, ids=[message[:60] for _, message in INVALID])
def test_rejects_invalid_images_with_a_one_line_message(images, message, classifier):
    with pytest.raises(ValueError, match=f"^{message}") as raised:
        classifier.predict(images)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize("device", ["cuda:99", 3])
def test_rejects_a_device_that_does_not_exist(device, classifier, detector):
    functions = (classifier.predict, detector.predict, partial(ln.evaluate, detector), ln.load)
    for function in functions:
        with pytest.raises(ValueError, match=r"^device must be cpu.*, got "):
            function("nowhere", device=device)


@pytest.mark.parametrize("task", MODELS)
def test_load_accepts_every_file_of_a_run(task, runs, pixels):
    name = "weights.safetensors" if task == "segmentation" else "checkpoints/last.ckpt"
    model = ln.load(str(runs[task] / name))
    assert isinstance(model, MODELS[task])
    assert repr(model) == f"{type(model).__name__}({model.card.model}, {len(model.classes)} classes)"
    assert result(model.predict(pixels)[0]) == result(ln.load(runs[task]).predict(pixels)[0])


def test_load_accepts_best_ckpt_and_an_unfinished_run(quick_run, tmp_path):
    folder = shutil.copytree(quick_run, tmp_path / "run")
    (folder / "weights.safetensors").unlink()
    assert ln.load(folder).card == ln.load(folder / "checkpoints/best.ckpt").card == ln.load(quick_run).card


def test_rejects_invalid_arguments_and_those_of_the_other_task(classifier, detector, segmenter, tmp_path):
    with pytest.raises(ValueError, match=r"^tile_size must be greater than or equal to 16, got 8"):
        segmenter.predict(ZEROS, tile_size=8)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'tile_size'"):
        classifier.predict(ZEROS, tile_size=64)
    with pytest.raises(ValueError, match=r"^stretch must be a valid boolean, got 'off'"):
        classifier.predict(ZEROS, stretch="off")
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'data_root'"):
        ln.evaluate(detector, data_root=tmp_path)
    with pytest.raises(ValueError, match=r"^model must be a model from load or a path, got 5"):
        ln.evaluate(5)
    with pytest.raises(ValueError, match=r"^batch_size must be greater than 0, got 0"):
        ln.evaluate(classifier, batch_size=0)
    with pytest.raises(ValueError, match=r"^workers must be"):
        ln.evaluate(classifier, workers=-1)
