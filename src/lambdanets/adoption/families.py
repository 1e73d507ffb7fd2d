"""The families of third-party lambda layers. To add one, describe it and add it to FAMILIES."""

from dataclasses import replace

from lambdanets.adoption.layout import Family

TIMM = Family(  # timm.layers.lambda_layer
    name="timm",
    heads="num_heads",
    projections=("qkv", "qkv", "qkv"),
    tables=(("conv_lambda.weight", "kuyx1"), ("pos_emb", "yxk")),
    pool="pool",
)
LUCIDRAINS = Family(  # lambda-networks on PyPI
    name="lucidrains",
    projections=("to_q", "to_k", "to_v"),
    tables=(("pos_conv.weight", "ku1yx"), ("rel_pos_emb", "yxku"), ("pos_emb", "nmku")),
    intra_depth_first=True,
)
ATOMMIC = replace(LUCIDRAINS, projections=("to_q.0", "to_k.0", "to_v.0"))  # its LambdaUNet
HOLOCRON = Family(  # holocron.nn, pylocron on PyPI
    name="Holocron",
    heads="num_heads",
    projections=("to_q", "to_k", "to_v"),
    tables=(("R", "ku1yx"), ("pos_emb", "nmku")),
)
D_LI14 = Family(  # lambda.pytorch and its copies, such as yan-roo's
    name="d-li14",
    heads="Nh",
    projections=("conv_qkv", "conv_qkv", "conv_qkv"),
    tables=(("lambda_conv.weight", "ku1yx"),),
    intra_depth_first=True,
)
LEADERJ1001 = Family(  # LambdaNetworks, and Telefonica's layers in 1-D and 2-D
    name="leaderj1001",
    projections=("queries.0", "keys.0", "values.0"),
    norms=("queries.1", "values.1"),
    tables=(("embedding", "ku1yx"), ("embedding", "ku1x"), ("embedding", "ku")),
)

# Several families may recognize a layer. The first whose replacement gives the same outputs counts.
FAMILIES = (
    TIMM,
    LUCIDRAINS,
    replace(LUCIDRAINS, slice_table="tem_conv.weight", slices="cfg.var_t"),  # LambdaUNet
    ATOMMIC,
    replace(ATOMMIC, slice_table="temp_conv.weight", slices="num_slices"),
    HOLOCRON,
    replace(HOLOCRON, heads="heads"),  # the first version of lucidrains' layer
    D_LI14,
    LEADERJ1001,
)
