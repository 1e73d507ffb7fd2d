"""Titles and explanations of the tables."""

TITLES = {
    "2": "Complexities of attention and lambda layers",
    "3": "Layers in ResNet-50 on ImageNet",
    "4": "Memory and throughput of layers in ResNet-50",
    "5": "Models trained on extra data",
    "6": "Complexities of multi-head and multi-query lambda layers",
    "7": "Complexities with an intra-depth",
    "8": "Query depth, heads and intra-depth",
    "9": "Content and position",
    "10": "Scope",
    "11": "Normalizations",
    "12": "Stages on lambda layers in ResNet-50",
    "13": "Number of lambda layers in c4",
    "14": "Detection and segmentation on COCO",
    "15": "Parameters compared with EfficientNet-B6",
    "16": "FLOPs compared with EfficientNet-B6",
    "17": "MobileNet-v2 with lambda blocks",
    "18": "LambdaResNets by depth and image size",
    "19": "Blocks of LambdaResNets",
    "20": "Regularization of LambdaResNets",
    "E.2": "Memory of LambdaResNet-420 (Sec. E.2)",
    "fn2": "Memory of one attention layer (footnote of the introduction)",
}

PARAGRAPHS = {
    "2": "Attention keeps a map for each example and head. A lambda layer keeps embeddings that the whole batch "
    "shares, and one lambda for all heads of a position, which divides its time by h. A local scope r makes "
    "the time linear in n. Exponents are fitted to the multiply-adds that the operations of this package run, "
    "over a grid of sizes; they match within 0.05. Where the term has a sum of k and d, both scale together. "
    "Space was not fitted.",
    "3": "Every 3x3 convolution of ResNet-50 is replaced by another layer. Lambda layers have the fewest parameters, "
    "because their projections are small and the table of embeddings does not grow with the "
    "channels. For the rows that the paper quotes from other papers, ours have that layer in every block of the same "
    "ResNet-50, unlike the original networks; only local self-attention has the paper's count.",
    "4": "Memory is what is kept for the backward pass: attention maps, or embeddings. Attention maps grow with batch "
    "and heads; embeddings do not, and take a third where layers of one resolution share them. "
    "GB are GiB, for 128 images in float32, 8 heads of attention, and 3, 4, 6 and 3 layers on maps of side 56, "
    "28, 14 and 7. The paper's space of the lambda convolution has an embedding per pair; "
    "one table of r entries, l k r, is enough.",
    "5": "At the accuracy of EfficientNet-B7, LambdaResNet-152 trains 9.5 times as fast according to the paper. "
    "The paper's throughputs were measured on TPUs.",
    "6": "One lambda per head costs h times as much as one lambda shared by all heads. In the paper's space column "
    "the factor h is in the wrong row: the embeddings of the multi-head layer are the ones that take h k n m.",
    "7": "An intra-depth u multiplies the cost of computing lambdas, but not of applying them.",
    "8": "A larger query depth adds few parameters: its projections and its part of the "
    "table. More heads move parameters from values to queries. Four counts contradict "
    "other rows, a fifth is 0.1 million above the architecture's, and a sixth matches only without "
    "the table entries that no 224-pixel image uses.",
    "9": "Without position, accuracy falls by 9.6 points, without content by 0.3. Position takes 7 of the 12 "
    "billion FLOPs; content costs one lambda that all positions share. FLOPs are 2 per multiply-add "
    "of convolutions, linear layers and lambda contractions; each query's context counts min(r, S) "
    "positions along a side S, borders included. Content and position lambdas are counted as applied one after the "
    "other, as in Fig. 3 of the paper.",
    "10": "The FLOPs match with lambda layers in c3, c4 and c5, not in the last two stages as the caption "
    "says. FLOPs grow with the area of the scope until it covers the maps; accuracy stops growing at 15.",
    "11": "Keys must be normalized, best by softmax. Every row is an option of the layer.",
    "12": "Most parameters are saved where there are many channels: lambda layers in c5 alone save a quarter. Time is "
    "lost where maps are large, in c2 and c3.",
    "13": "A few lambda layers in c4 give most of the accuracy at little cost in throughput; replacing all of c4 "
    "(C4) saves parameters instead. ResNets are on the same ResNet-RS skeleton, with and without "
    "squeeze-and-excitation. LambdaResNet-152 has 83.4 here and 83.8 in Table 18, for the same network "
    "and image size.",
    "14": "Lambda layers in the backbone improve small objects most. The recipe is `lambdanets detect train coco`; "
    "it has not been run in full.",
    "15": "LambdaResNets with lambda layers in all of c4 and c5 have fewer parameters than EfficientNet-B6, on "
    "smaller images.",
    "16": "With scope 7, LambdaResNet-270 needs fewer FLOPs than EfficientNet-B6. The 34 G match with "
    "lambda layers in c3 as well, as in Table 10.",
    "17": "Two lambda blocks save 8% of the parameters and 6% of the FLOPs. The counts match with "
    "32 query channels in all, 8 per head, where the text says a query depth of 32. The 563 million match "
    "only if content and position lambdas are summed first and applied once, as the layer here does; "
    "the 34 G of Table 16 only if they are applied separately. The other counts match either way.",
    "18": "Depth and image size scale together. Latencies are of a training step of 1,024 images on 8 TPUv3 cores.",
    "19": "Computed from the models. The depth is three layers per block plus two; LambdaResNet-270 and 420 have "
    "272 and 419 layers.",
    "20": "Settings of the 350-epoch training; no results.",
    "E.2": "Eight lambda layers on 20x20 maps, k = 16, in bfloat16; the baseline is attention with 8 heads and 32 "
    "examples. MB are MiB, and the 0.625 GB are 625 MiB.",
    "fn2": "Attention maps of 128 images of 64x64 positions, 8 heads, float32, in GiB.",
}
