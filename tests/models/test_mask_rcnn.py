"""Mask R-CNN: images of any size, padding, losses and invalid arguments."""

import copy

import pytest
import torch
from torch import nn

from lambdanets.adoption.trial import randomize
from lambdanets.errors import InputError
from lambdanets.models.mask_rcnn import mask_rcnn
from lambdanets.models.padding import check_padded_batches, padded_batch

SMALL_OPTIONS = {
    "pyramid_channels": 16,
    "box_layers": (1, 32),
    "mask_layers": 1,
    "min_size": 64,
    "max_size": 96,
    "rpn_pre_nms_top_n_train": 200,
    "rpn_post_nms_top_n_train": 100,
    "box_batch_size_per_image": 32,
}
SIZES = [(37, 70), (64, 33), (50, 50)]


def small_mask_rcnn(backbone="lambda_resnet20_small", num_classes=2, **options):
    torch.manual_seed(0)
    return mask_rcnn(backbone, num_classes, **SMALL_OPTIONS | options)


def random_images(sizes=SIZES, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(3, *size, generator=generator, dtype=dtype) for size in sizes]


def make_target(size, boxes):
    """Return a target with rectangular masks and alternating labels 1 and 2."""
    masks = torch.zeros(len(boxes), *size, dtype=torch.uint8)
    for mask, (x, y, right, bottom) in zip(masks, boxes, strict=True):
        mask[y:bottom, x:right] = 1
    labels = torch.arange(len(boxes)) % 2 + 1
    return {"boxes": torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4), "labels": labels, "masks": masks}


TARGETS = [
    make_target(SIZES[0], [(3, 4, 20, 30), (30, 5, 60, 20)]),
    make_target(SIZES[1], [(0, 0, 33, 64)]),
    make_target(SIZES[2], []),
]


@pytest.fixture(scope="module")
def simulated_model():
    """Return a small float64 model that detects objects as after training, with random classifier weights."""
    model = small_mask_rcnn(box_score_thresh=0.0, box_detections_per_img=20).double()
    randomize(model.backbone)
    torch.manual_seed(2)
    nn.init.normal_(model.rpn.head.cls_logits.weight, std=0.5)
    nn.init.normal_(model.roi_heads.box_predictor.cls_score.weight, std=0.5)
    return model.eval()


@pytest.mark.parametrize("box", [(5.0, 5.0, 5.0, 20.0), (0.0, 0.0, 9.0, float("nan"))])
def test_rejects_boxes_without_area_in_training(box):
    targets = [TARGETS[0], TARGETS[1] | {"boxes": torch.tensor([box])}]
    with pytest.raises(InputError, match=r"x1 below x2 and y1 below y2, got \[.*\] of image 1"):
        small_mask_rcnn().train()(random_images(SIZES[:2]), targets)


def test_detections_are_independent_of_other_images_in_the_batch(simulated_model):
    with torch.no_grad():
        batched = simulated_model(random_images(dtype=torch.float64))
        for image, detections in zip(random_images(dtype=torch.float64), batched, strict=True):
            (single,) = simulated_model([image])
            assert len(detections["boxes"]) == 20
            assert torch.equal(single["labels"], detections["labels"])
            for name in ("boxes", "scores", "masks"):
                torch.testing.assert_close(single[name], detections[name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", [(1, 5000), (5000, 1), (1, 1), (2, 300)])
def test_accepts_images_of_any_shape(size, simulated_model):
    with torch.no_grad():
        (detections,) = simulated_model([torch.rand(3, *size, dtype=torch.float64)])
    assert detections["masks"].shape[-2:] == size


def test_losses_have_a_gradient_for_every_parameter_and_targets_stay():
    model = small_mask_rcnn().train()
    targets = copy.deepcopy(TARGETS)
    losses = model(random_images(), targets)
    assert all(torch.equal(a[name], b[name]) for a, b in zip(targets, TARGETS, strict=True) for name in b)
    assert set(losses) == {
        "loss_objectness", "loss_rpn_box_reg", "loss_classifier", "loss_box_reg", "loss_mask",
    }  # fmt: skip
    sum(losses.values()).backward()
    without_gradient = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    assert without_gradient == set()


def test_boxes_are_float32_under_autocast():
    model = small_mask_rcnn(min_size=64, max_size=1024, box_score_thresh=0.0).eval()
    for layer in (model.rpn.head.bbox_pred, model.roi_heads.box_predictor.bbox_pred):
        nn.init.zeros_(layer.weight)  # boxes then equal the anchors
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        (detections,) = model([torch.rand(3, 64, 576)])
    assert detections["boxes"].dtype == detections["masks"].dtype == torch.float32
    inside = detections["boxes"][(detections["boxes"] < 1024) & (detections["boxes"] > 512)]
    assert len(inside)
    assert (inside % 4).any()  # bfloat16 represents only multiples of 4 above 512


def test_a_detector_in_bfloat16_has_boxes_in_float32():
    with torch.no_grad():
        # larger than the size of the model
        (detections,) = small_mask_rcnn(box_score_thresh=0.0).bfloat16().eval()([torch.rand(3, 90, 120).bfloat16()])
    assert detections["boxes"].dtype == detections["masks"].dtype == torch.float32
    assert len(detections["boxes"])


def test_anchors_in_padding_are_ignored_and_have_low_objectness(monkeypatch):
    model, labels = small_mask_rcnn().train(), []
    sample = model.rpn.fg_bg_sampler
    monkeypatch.setattr(model.rpn, "fg_bg_sampler", lambda matched: labels.extend(matched) or sample(matched))
    batch, targets = model.transform(random_images(), TARGETS)
    with padded_batch(batch.image_sizes, batch.tensors.shape[-2:]):
        maps = model.backbone(batch.tensors)
        model.rpn(batch, maps, targets)
        logits, _ = model.rpn.head(list(maps.values()))
    assert len(labels) == len(SIZES)
    for index, label in enumerate(labels):
        padded = torch.cat([level[index].permute(1, 2, 0).flatten() for level in logits]) == -100
        assert (label[padded] == -1).all()
        assert (label[~padded] == 0).any()
        assert padded.any() == (batch.image_sizes[index] != tuple(batch.tensors.shape[-2:]))


def test_pyramid_strides_do_not_depend_on_the_first_image():
    model = small_mask_rcnn("lambda_resnet50")
    assert model.backbone.strides == (4, 8, 16, 32, 64)
    with torch.no_grad():
        model.eval()([torch.rand(3, 10, 10)])
    assert model.roi_heads.box_roi_pool.scales == [1 / 4, 1 / 8, 1 / 16, 1 / 32]
    shapes = [cell.shape for cell in model.rpn.anchor_generator.cell_anchors]
    assert shapes == [(3, 4)] * 5
    sides = [(cell[1, 2] - cell[1, 0]).item() for cell in model.rpn.anchor_generator.cell_anchors]
    assert sides == [32, 64, 128, 256, 512]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": (1, 3)}, "levels must have strides that double"),
        ({"box_detection_per_img": 9}, "no argument 'box_detection_per_img'; the nearest is box_detections_per_img"),
        ({"levels": (2, 9)}, r"lambda_resnet20_small cannot be built with .*'out_indices': \(2, 9\)"),
        ({"backbone": "skresnet18"}, "padding cannot be hidden in skresnet18: its maps depend"),
        ({"backbone": "lambda_resnet51"}, "there is no model named 'lambda_resnet51'"),
        ({"backbone": "vit_tiny_patch16_224", "levels": (0,), "hide_padding": False}, "does not accept images"),
    ],
)
def test_rejects_invalid_arguments(options, message):
    with pytest.raises(InputError, match=message):
        small_mask_rcnn(**options)


@pytest.mark.parametrize("backbone", ["ese_vovnet19b_dw", "densenet121"])
def test_padding_can_be_hidden_in_networks_of_timm(backbone):
    pyramid = small_mask_rcnn(backbone).backbone
    assert pyramid.strides == (4, 8, 16, 32, 64)
    with torch.device("meta"):  # the caller's default device does not matter
        check_padded_batches(pyramid, backbone, hide_padding=True)


def test_networks_of_timm_may_have_one_channel():
    options = {"backbone_options": {"in_chans": 1}, "image_mean": [0.5], "image_std": [0.5]}
    detections = small_mask_rcnn("resnet10t", **options).eval()([torch.rand(1, 40, 50)])
    assert detections[0]["masks"].shape[1:] == (1, 40, 50)


def test_mask_threshold_equals_thresholded_probabilities(simulated_model):
    model = small_mask_rcnn(box_score_thresh=0.0, box_detections_per_img=20, mask_threshold=0.3).double()
    model.load_state_dict(simulated_model.state_dict())
    with torch.no_grad():
        results = model.eval()(random_images(dtype=torch.float64))
        expected = simulated_model(random_images(dtype=torch.float64))
    for detections, probabilities in zip(results, expected, strict=True):
        assert detections["masks"].dtype == torch.bool
        assert torch.equal(detections["masks"], probabilities["masks"] > 0.3)
    assert any(detections["masks"].any() for detections in results)


def test_training_images_have_one_of_several_sizes():
    resize = small_mask_rcnn(min_size=(32, 48, 64), max_size=128).transform.resize
    with torch.random.fork_rng():
        torch.manual_seed(0)
        assert {resize(torch.rand(3, 50, 60))[0].shape[1] for _ in range(40)} == {32, 48, 64}
