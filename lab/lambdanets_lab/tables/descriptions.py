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
    "12": "Stages with lambda layers in ResNet-50",
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
    "2": "Attention needs an attention map for each example and head. A lambda layer needs embeddings that are "
    "shared by the whole batch, and computes one lambda per position for all heads, which divides its time by "
    "h. With a local scope r, the time is linear in n. Exponents of lambda layers are those of the "
    "multiply-adds that this package executes as one size grows fourfold; they match within 0.05. Space was not "
    "counted.",
    "3": "Every 3x3 convolution of ResNet-50 is replaced by another layer. Lambda layers have the fewest "
    "parameters, because their projections are small and the size of the embedding table does not depend on "
    "the number of channels. For rows that the paper quotes from other papers, we put that layer into every "
    "block of the same ResNet-50, unlike the original networks; only local self-attention has the paper's "
    "count.",
    "4": "Memory is that of the tensors saved for the backward pass: attention maps, or embeddings. Attention maps "
    "grow with batch size and heads; embeddings do not, and need a third of the memory if the layers of one "
    "resolution share them. GB are GiB, for 128 images in float32, 8 heads of attention, and 3, 4, 6 and 3 "
    "layers on feature maps of side 56, 28, 14 and 7. The paper's space of the lambda convolution counts one "
    "embedding per pair of positions; one table of r entries, l k r, is enough. The attention that is measured is "
    "PyTorch's, whose fused kernels store no attention maps.",
    "5": "According to the paper, LambdaResNet-152 trains 9.5 times as fast as EfficientNet-B7, at the same "
    "accuracy. The paper's throughputs were measured on TPUs.",
    "6": "One lambda per head costs h times as much as one lambda shared by all heads. In the paper's space column "
    "the factor h is in the wrong row: the embeddings of the multi-head layer need h k n m.",
    "7": "An intra-depth u multiplies the cost of computing lambdas, but not of applying them.",
    "8": "A larger query depth adds few parameters, in its projections and in the table. More heads move parameters "
    "from values to queries. Four counts contradict other rows, a fifth is 0.1 million above that of the "
    "architecture, and a sixth does not have the table entries that no 224-pixel image uses.",
    "9": "Without position, accuracy drops by 9.6 points; without content, by 0.3. Position takes 7 of the 12 "
    "billion FLOPs; content costs little, since all positions share one lambda. FLOPs are 2 per multiply-add "
    "of convolutions, linear layers and lambda contractions. The context of each query counts min(r, S) "
    "positions along a side S, also at the borders. Content and position lambdas are counted as applied "
    "separately, as in Fig. 3 of the paper.",
    "10": "The FLOPs match for lambda layers in c3, c4 and c5, not in the last two stages as the caption says. FLOPs "
    "grow with the area of the scope until it covers the feature maps; accuracy does not grow beyond scope 15.",
    "11": "Without normalized keys, accuracy drops by 8.4 points; softmax is the best. Each row is an option of the "
    "layer.",
    "12": "Most parameters are saved where there are many channels: lambda layers in c5 alone save a quarter. Most "
    "time is lost in the paper where feature maps are large, in c2 and c3.",
    "13": "A few lambda layers in c4 give most of the accuracy at a small cost in the paper's throughput; lambda "
    "layers in all of c4 (C4) save parameters instead. The ResNets have the same ResNet-RS architecture, with and "
    "without squeeze-and-excitation. LambdaResNet-152 has 83.4 here and 83.8 in Table 18, for the same network and "
    "image size.",
    "14": "Lambda layers in the backbone improve small objects most. The recipe is `lambdanets train coco`; "
    "it has not been run in full.",
    "15": "LambdaResNets with lambda layers in all of c4 and c5 have fewer parameters than EfficientNet-B6, with "
    "smaller images.",
    "16": "With scope 7, LambdaResNet-270 needs fewer FLOPs than EfficientNet-B6. The 34 G match if c3 has lambda "
    "layers as well, as in Table 10.",
    "17": "Two lambda blocks save 8% of the parameters and 6% of the FLOPs. The counts match with 32 query channels "
    "in total, 8 per head, whereas the text says a query depth of 32. The 563 million match only if content "
    "and position lambdas are added and applied once, as the layer does here; the 34 G of Table 16 match only "
    "if they are applied separately. The other counts match either way.",
    "18": "Depth and image size are scaled jointly. Latencies are those of a training step with 1,024 images on 8 "
    "TPUv3 cores.",
    "19": "Computed from the models. The depth is three layers per block plus two; LambdaResNet-270 and 420 have 272 "
    "and 419 layers.",
    "20": "Settings of the 350-epoch training; no results.",
    "E.2": "Eight lambda layers on 20x20 feature maps, k = 16, in bfloat16; the baseline is attention with 8 heads "
    "and 32 examples. MB are MiB, and the 0.625 GB are 625 MiB.",
    "fn2": "Attention maps of 128 images with 64x64 positions, 8 heads, float32, in GiB.",
}
