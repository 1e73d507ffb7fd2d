"""What each table is about, in a line, and what it says, in a paragraph."""

TITLES = {
    "2": "Complexities of attention and lambda layers",
    "3": "Layers in ResNet-50 on ImageNet",
    "4": "Memory and throughput of layers in ResNet-50",
    "5": "Models trained on extra data",
    "6": "Complexities of multi-head and multi-query lambda layers",
    "7": "Complexities with an intra-depth",
    "8": "Query depth, heads and intra-depth",
    "9": "Content against position",
    "10": "Scope",
    "11": "Normalizations",
    "12": "Stages on lambda layers in ResNet-50",
    "13": "Number of lambda layers in c4",
    "14": "Detection and segmentation on COCO",
    "15": "Parameters beside EfficientNet-B6",
    "16": "FLOPs beside EfficientNet-B6",
    "17": "MobileNet-v2 with lambda blocks",
    "18": "LambdaResNets by depth and image size",
    "19": "Blocks of LambdaResNets",
    "20": "Regularization of LambdaResNets",
    "E.2": "Memory of LambdaResNet-420 (Sec. E.2)",
    "fn2": "Memory of one attention layer (footnote of the introduction)",
}

PARAGRAPHS = {
    "2": "Attention keeps a map for each example and head; a lambda layer keeps embeddings that the whole batch "
    "shares, and one lambda for all heads of a position, which divides its time by h. A local scope r makes "
    "the time linear in n. Exponents are fitted to the multiply-adds that the operations of this package run, "
    "over a grid of sizes; they count as equal within 0.05. Where k and d stand in a sum they grow together. "
    "Space was not fitted.",
    "3": "Every 3x3 convolution of ResNet-50 becomes another layer. Lambda layers have the fewest parameters of "
    "all printed rows, because their projections are small and the table of embeddings does not grow with the "
    "channels. Of the rows that the paper quotes from others, ours have that layer in every block of the same "
    "ResNet-50, which the originals have not: only local self-attention comes to the printed count.",
    "4": "Memory is what stays for the backward pass: attention maps, or embeddings. Attention's grows with batch "
    "and heads; that of embeddings does not, and falls to a third where layers of one resolution share them. "
    "GB are GiB, of 128 images in float32, with 8 heads of attention, in 3, 4, 6 and 3 layers on maps of 56, "
    "28, 14 and 7 positions a side. The space of the lambda convolution is printed as if every pair had an "
    "embedding of its own: one table of r entries, l k r, is enough.",
    "5": "At the accuracy of EfficientNet-B7 the paper reports a LambdaResNet-152 to train 9.5 times as fast. The "
    "parameters follow from the architectures; the throughputs are those of TPUs.",
    "6": "A lambda for each head costs h times as much as one that all heads share. In the space column of the "
    "paper the factor h stands in the wrong row: the embeddings of the multi-head layer are the ones that "
    "take h k n m.",
    "7": "An intra-depth u makes lambdas dearer, in proportion, but not their application.",
    "8": "More query depth adds parameters slowly: each step of k brings its projections and its part of the "
    "table. The number of heads moves parameters from values to queries. Four counts contradict "
    "their neighbours, a fifth is a tenth of a million above the architecture's, and a sixth comes out only without "
    "the table entries that no 224-pixel image uses.",
    "9": "Without position the accuracy falls by 9.6 points, without content by 0.3. Position takes 7 of the 12 "
    "billion operations; content costs a lambda that all positions share. Operations are 2 per multiply-add "
    "of convolutions, linear layers and contractions of lambdas; each query's context counts min(r, S) "
    "positions along a side S, borders included. Content and position lambdas count as applied one after the "
    "other, as in Fig. 3 of the paper.",
    "10": "The figures come out with lambda layers in c3, c4 and c5, not in the last two stages as the caption "
    "says. Operations grow with the area of the scope until it covers the maps; accuracy stops growing at 15.",
    "11": "Keys must be normalized, and by softmax best. Every row is an option of the layer; the accuracies are "
    "the paper's.",
    "12": "Parameters fall most where channels are many: lambda layers in c5 alone save a quarter. Time is lost "
    "where maps are large, in c2 and c3.",
    "13": "A few lambda layers in c4 give most of the accuracy at little cost in throughput; replacing all of c4 "
    "(C4) saves parameters instead. ResNets are on the same ResNet-RS skeleton, with and without "
    "squeeze-and-excitation. The 83.4 of LambdaResNet-152 here and the 83.8 of Table 18 are the same network "
    "at the same size, and cannot be reconciled.",
    "14": "Lambda layers in the backbone help small objects most. `lambdanets detect train coco` is the recipe; "
    "what it gives has not been measured here.",
    "15": "LambdaResNets with lambda layers in all of c4 and c5 need fewer parameters than EfficientNet-B6, on "
    "smaller images.",
    "16": "With a scope of 7 a LambdaResNet-270 needs fewer operations than EfficientNet-B6. The 34 G come out with "
    "lambda layers in c3 as well, as in Table 10.",
    "17": "Two blocks replaced save 8% of the parameters and 6% of the operations. The printed figures come out "
    "with 32 query channels in all, 8 a head, where the text says a query depth of 32. Its 563 million come "
    "out only where content and position lambdas are summed first and applied once, as the layer here does; "
    "the 34 G of Table 16 only where they are applied apart. The other figures come out either way.",
    "18": "Depth and image size grow together. Latencies are of a training step of 1,024 images on 8 TPUv3 cores.",
    "19": "Read off the built models. Three layers a block and two more give the depths, except that those of 270 "
    "and 420 are nominal: 272 and 419.",
    "20": "Settings of the 350-epoch training; nothing here is a result.",
    "E.2": "Eight lambda layers on maps of 20x20, k = 16, in bfloat16; attention with 8 heads and 32 examples in "
    "their place. MB are MiB, and the 0.625 GB are 625 MiB.",
    "fn2": "Attention maps of 128 images of 64x64 positions, 8 heads, float32, in GiB.",
}
