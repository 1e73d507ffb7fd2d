"""What adopt keeps of the layers that it replaces, and which layers it refuses."""

import copy
import pickle

import pytest
import torch
from timm.layers import freeze_batch_norm_2d
from timm.layers.lambda_layer import LambdaLayer as TimmLayer
from torch import nn
from torchvision.ops import FrozenBatchNorm2d

from adoption.foreign_layers import Holocron, Leaderj1001, Lucidrains
from lambdanets import LambdaLayer2d, adopt, foreign_state_dict, mask_rcnn


def timm_layer(**options):
    return TimmLayer(8, num_heads=2, dim_head=4, **({"r": 3} | options))


def adopted(layer):
    """The layer that replaces one in a network."""
    network = nn.Sequential(layer)
    adopt(network)
    return network[0]


def lucidrains(**options):
    return Lucidrains(8, 8, **({"dim_k": 4, "u": 1, "heads": 2, "r": 3} | options))


def test_keeps_training_mode_dtype_and_requires_grad():
    layer = timm_layer().to(torch.bfloat16)
    layer.norm_q.eval()
    layer.conv_lambda.bias.requires_grad_(False)
    layer.qkv.requires_grad_(False)
    ours = adopted(layer)
    assert ours.training
    assert ours.value_norm.training
    assert not ours.query_norm.training
    frozen = {name for name, parameter in ours.named_parameters() if not parameter.requires_grad}
    projections = {f"{name}_projection.weight" for name in ("query", "key", "value")}
    assert frozen == projections | {"position_bias"}
    assert {parameter.dtype for parameter in ours.parameters()} == {torch.bfloat16}
    assert not adopted(timm_layer().eval()).training


def test_keeps_momentum_eps_and_statistics_of_batch_norm():
    layer = timm_layer()
    layer.norm_v = nn.BatchNorm2d(4, eps=1e-3, momentum=0.01)
    nn.init.normal_(layer.norm_v.running_mean)
    ours = adopted(layer)
    assert (ours.value_norm.eps, ours.value_norm.momentum) == (1e-3, 0.01)
    torch.testing.assert_close(ours.value_norm.running_mean, layer.norm_v.running_mean)
    assert ours.value_norm is not layer.norm_v


@pytest.mark.parametrize(
    "make_norm",
    [
        FrozenBatchNorm2d,
        nn.SyncBatchNorm,
        lambda c: nn.GroupNorm(2, c),
        lambda c: nn.InstanceNorm2d(c),
        lambda c: nn.BatchNorm2d(c) if c == 8 else nn.Identity(),
    ],
    ids=["frozen", "synchronized", "group", "instance", "of queries only"],
)
def test_keeps_other_norms(make_norm):
    layer = lucidrains()
    layer.norm_q, layer.norm_v = make_norm(8), make_norm(4)
    layer.eval()
    ours, x = adopted(copy.deepcopy(layer)), torch.randn(2, 8, 5, 6)
    assert (type(ours.query_norm), type(ours.value_norm)) == (type(layer.norm_q), type(layer.norm_v))
    torch.testing.assert_close(ours(x), layer(x))


def test_module_at_several_places_stays_one_module():
    layer = timm_layer()
    network = nn.ModuleList([nn.Sequential(layer, nn.ReLU()), layer])
    expected = list(network.state_dict())
    assert adopt(network) == {"0.0": "timm", "1": "timm"}
    assert network[0][0] is network[1]
    assert list(foreign_state_dict(network)) == expected


@pytest.mark.parametrize("other", [nn.Linear(8, 8, bias=False), lucidrains()])
def test_refuses_parameters_that_other_modules_share(other):
    layer = lucidrains()
    other.norm_q = layer.norm_q
    with pytest.raises(ValueError, match=r"its norm_q.weight is also a parameter of another module"):
        adopt(nn.Sequential(layer, other))


def test_adoption_and_mask_rcnn_leave_random_generators_unchanged(monkeypatch):
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("seeded the GPUs"))
    network, state = nn.Sequential(timm_layer()), torch.get_rng_state()
    adopt(network)
    assert torch.equal(torch.get_rng_state(), state)
    mask_rcnn("resnet18", 3, levels=(2, 3))


def test_adopted_network_can_be_copied_and_pickled():
    network = nn.Sequential(timm_layer(qkv_bias=True))
    expected = network.state_dict()
    adopt(network)
    for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert list(foreign_state_dict(other)) == list(expected)


def test_adopted_network_with_frozen_norms_converts_back():
    network, weights = nn.Sequential(timm_layer()), nn.Sequential(timm_layer()).state_dict()
    network.load_state_dict(weights)
    adopt(network)
    freeze_batch_norm_2d(network)
    converted = foreign_state_dict(network)
    assert {name: x.dtype for name, x in converted.items()} == {name: x.dtype for name, x in weights.items()}
    torch.testing.assert_close(converted["0.qkv.weight"], weights["0.qkv.weight"])


def test_outputs_distinguish_holocron_from_lucidrains():
    options = {"dim_k": 4, "u": 3, "heads": 2, "num_positions": 12}
    first = Holocron(8, 8, **options)
    first.heads = 2  # as in lucidrains' first version
    network = nn.Sequential(first, Lucidrains(8, 8, **options))
    assert adopt(network) == {"0": "Holocron", "1": "lucidrains"}


class ScaledLayer(TimmLayer):
    def forward(self, x):
        return super().forward(x) * self.dim_qk**-0.5


def changed(layer, **attributes):
    for name, value in attributes.items():
        setattr(layer, name, value)
    return layer


def leaderj1001(u, **options):
    return Leaderj1001(8, 8, k=4, u=u, heads=2, m=3, **options)


REFUSED = [
    (lambda: changed(timm_layer(), forward=lambda x: x + 0), "0, a layer of timm, cannot be replaced: it is not equiv"),
    (lambda: ScaledLayer(8, num_heads=2, dim_head=4, r=3), "it is not equivalent: its outputs in evaluation differ by"),
    (lambda: changed(timm_layer(), pool=nn.MaxPool2d(2)), "pool must be an nn.AvgPool2d or None, got MaxPool2d"),
    (lambda: changed(lucidrains(), to_k=nn.Conv2d(8, 4, 3, padding=1, bias=False)), "to_k.weight does not fit key_pro"),
    (lambda: changed(lucidrains(), to_v=nn.Linear(8, 4)), "its projections are not convolutions"),
    (lambda: timm_layer(r=4), "cannot be replaced: scope must be a tuple of 1, 2 or 3 odd and positive sides"),
    (lambda: changed(lucidrains(), gamma=nn.Parameter(torch.ones(8))), "tensors that lambda layers do not have: gamma"),
    (lambda: changed(lucidrains(norms=False), to_v=nn.Conv2d(8, 4, 1)), "value_projection.bias has no value_norm.runn"),
    (lambda: leaderj1001(2), "0, a layer of leaderj1001, .* it is not equivalent"),  # misreads channels of the values
    (lambda: leaderj1001(1, normalized_keys=True), "it has tensors that lambda layers do not have: keys.1"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_refuses_a_layer_and_leaves_the_network_unchanged(make, message):
    network = nn.Sequential(make(), timm_layer())
    layers = list(network)
    with pytest.raises(ValueError, match=message) as raised:
        adopt(network)
    assert "\n" not in str(raised.value)
    assert list(network) == layers


@pytest.mark.parametrize(
    ("convert", "network", "message"),
    [
        (adopt, nn.Conv2d(3, 3, 1), "model must contain lambda layers of timm, .* got a Conv2d with none"),
        (adopt, timm_layer(), r"must be a network, got a lambda layer, LambdaLayer, .* pass nn.Sequential\(layer\)"),
        (foreign_state_dict, nn.Sequential(LambdaLayer2d(8)), "must have layers replaced by adopt, got a Sequential"),
    ],
)
def test_rejects_a_model_without_such_layers(convert, network, message):
    with pytest.raises(ValueError, match=message):
        convert(network)


def test_adopts_on_the_meta_device():
    network = nn.Sequential(timm_layer(device="meta"))
    assert adopt(network) == {"0": "timm"}
    assert all(parameter.is_meta for parameter in network.parameters())
