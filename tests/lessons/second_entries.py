"""Facts from papers and answers of quizzes, entered a second time: from the papers, by hand."""

from math import cos, e, exp, log, sqrt

FACTS = {
    "BLEU and operations": {
        "ByteNet": (23.75, None, None, None),
        "Deep-Att + PosUnk": (None, 39.2, None, 1e20),
        "GNMT + RL": (24.6, 39.92, 2.3e19, 1.4e20),
        "ConvS2S": (25.16, 40.46, 9.6e18, 1.5e20),
        "MoE": (26.03, 40.56, 2e19, 1.2e20),
        "Deep-Att + PosUnk, ensemble": (None, 40.4, None, 8e20),
        "GNMT + RL, ensemble": (26.3, 41.16, 1.8e20, 1.1e21),
        "ConvS2S, ensemble": (26.36, 41.29, 7.7e19, 1.2e21),
        "Transformer (base)": (27.3, 38.1, 3.3e18, 3.3e18),
        "Transformer (big)": (28.4, 41.8, 2.3e19, 2.3e19),
    },
    "BLEU of variations": {
        "base": 25.8,
        **{"h = 1": 24.9, "h = 4": 25.5, "h = 16": 25.8, "h = 32": 25.4},
        **{"d_k = 16": 25.1, "d_k = 32": 25.4, "d_{model} = 1024": 26.0},
    },
    "parameters": {"base": 65_000_000, "big": 213_000_000},
    "tokens of a batch": 25e3,
    "processors": 8,
    "hours of training": {"base": 12, "big": 3.5 * 24},
    "steps of training": {"base": 1e5, "big": 3e5},
    "operations a second": 9.5e12,
    "E, A, B, alpha, beta": (1.69, 406.4, 410.7, 0.34, 0.28),
    "symbols for each parameter": 20,
    "best size for a petaflop/s-day": 1.3e9,
    "p, q, a": (0.076, 0.095, 0.73),
}
# Perplexity and BLEU, in the order of Vaswani et al. 2017, Table 3.
TABLE_3 = """
4.92 25.8, 5.29 24.9, 5.00 25.5, 4.91 25.8, 5.01 25.4, 5.16 25.1, 5.01 25.4, 6.11 23.7, 5.19 25.3,
4.88 25.5, 5.75 24.5, 4.66 26.0, 5.12 25.4, 4.75 26.2, 5.77 24.6, 4.95 25.5, 4.67 25.3, 5.47 25.7,
4.92 25.7"""
# What texts say of papers outside of FACTS.
SENTENCES = {
    4: [
        "encoder, only 8 made a difference",
        "half of these removals *raised* BLEU",
        "0.9 BLEU worse",
    ],
    5: ["(Table 3, row E): BLEU 25.7 instead of 25.8"],
    11: [
        "translator of the paper's base size, which has 48 heads (6 layers of 8)",
        "took out 38 of them and lost 0.15 BLEU",
    ],
}
ARXIV = """
2305.13245 Ainslie 2023: GQA
1607.06450 Ba 2016: Layer Normalization
1409.0473 Bahdanau 2015: Neural Machine Translation by Jointly Learning to Align and Translate
2004.05150 Beltagy 2020: Longformer
1703.03906 Britz 2017: Massive Exploration of Neural Machine Translation Architectures
2005.14165 Brown 2020: Language Models are Few-Shot Learners
1604.06174 Chen 2016: Training Deep Nets with Sublinear Memory Cost
1904.10509 Child 2019: Generating Long Sequences with Sparse Transformers
1406.1078 Cho 2014: Learning Phrase Representations using RNN Encoder-Decoder
2205.14135 Dao 2022: FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness
2405.21060 Dao 2024: Transformers are SSMs
1810.04805 Devlin 2019: BERT
2010.11929 Dosovitskiy 2021: An Image is Worth 16x16 Words
2012.14913 Geva 2021: Transformer Feed-Forward Layers Are Key-Value Memories
2111.00396 Gu 2022: Efficiently Modeling Long Sequences with Structured State Spaces
2312.00752 Gu 2023: Mamba
1512.03385 He 2016: Deep Residual Learning for Image Recognition
2203.15556 Hoffmann 2022: Training Compute-Optimal Large Language Models
1811.06965 Huang 2019: GPipe
1902.10186 Jain 2019: Attention is not Explanation
2310.06825 Jiang 2023: Mistral 7B
2001.08361 Kaplan 2020: Scaling Laws for Neural Language Models
2006.16236 Katharopoulos 2020: Transformers are RNNs
1412.6980 Kingma 2015: Adam: A Method for Stochastic Optimization
2006.15704 Li 2020: PyTorch Distributed
1801.10198 Liu 2018: Generating Wikipedia by Summarizing Long Sequences
1508.04025 Luong 2015: Effective Approaches to Attention-based Neural Machine Translation
1905.10650 Michel 2019: Are Sixteen Heads Really Better than One?
1812.06162 McCandlish 2018: An Empirical Model of Large-Batch Training
1710.03740 Micikevicius 2018: Mixed Precision Training
1805.02867 Milakov 2018: Online normalizer calculation for softmax
2104.04473 Narayanan 2021: Efficient Large-Scale Language Model Training on GPU Clusters
2209.11895 Olsson 2022: In-context Learning and Induction Heads
1211.5063 Pascanu 2013: On the Difficulty of Training Recurrent Neural Networks
2108.12409 Press 2022: Train Short, Test Long
2112.05682 Rabe 2021: Self-attention Does Not Need O(n²) Memory
2212.04356 Radford 2023: Robust Speech Recognition via Large-Scale Weak Supervision
1910.02054 Rajbhandari 2020: ZeRO
1910.10683 Raffel 2020: Exploring the Limits of Transfer Learning
1511.06732 Ranzato 2016: Sequence Level Training with Recurrent Neural Networks
2102.11174 Schlag 2021: Linear Transformers Are Secretly Fast Weight Programmers
1911.02150 Shazeer 2019: Fast Transformer Decoding
2002.05202 Shazeer 2020: GLU Variants Improve Transformer
1909.08053 Shoeybi 2019: Megatron-LM
2104.09864 Su 2021: RoFormer
1503.08895 Sukhbaatar 2015: End-To-End Memory Networks
1409.3215 Sutskever 2014: Sequence to Sequence Learning with Neural Networks
1512.00567 Szegedy 2016: Rethinking the Inception Architecture for Computer Vision
2302.13971 Touvron 2023: LLaMA
1706.03762 Vaswani 2017: Attention Is All You Need
1905.09418 Voita 2019: Analyzing Multi-Head Self-Attention
1410.3916 Weston 2015: Memory Networks
1908.04626 Wiegreffe 2019: Attention is not not Explanation
2309.17453 Xiao 2024: Efficient Streaming Language Models with Attention Sinks
2002.04745 Xiong 2020: On Layer Normalization in the Transformer Architecture
2007.14062 Zaheer 2020: Big Bird
1910.07467 Zhang 2019: Root Mean Square Layer Normalization
"""
OTHER_PAPERS = {
    "Bengio 1994": "https://doi.org/10.1109/72.279181",
    "Elhage 2021": "https://transformer-circuits.pub/2021/framework/index.html",
    "Elman 1990": "https://doi.org/10.1207/s15516709cog1402_1",
    "Gers 2000": "https://doi.org/10.1162/089976600300015015",
    "Griewank 2008": "https://doi.org/10.1137/1.9780898717761",
    "Hochreiter 1997": "https://doi.org/10.1162/neco.1997.9.8.1735",
    "Patarasuk 2009": "https://doi.org/10.1016/j.jpdc.2008.09.002",
    "Rumelhart 1986": "https://doi.org/10.1038/323533a0",
    "Srivastava 2014": "https://jmlr.org/papers/v15/srivastava14a.html",
    "Williams 1989": "https://doi.org/10.1162/neco.1989.1.2.270",
}
# The right answers, in order; of questions with choices the index.
ANSWERS = {
    1: [2 * (1 - 0.9**2), 2, 0.95**30, 30 + 2 - 1, 2 * 512],
    2: [1 / (1 + exp(-1)), 0.5 * (4 - (2 - 1)), 1, 2, 0.4 / sqrt(16)],
    3: [sqrt(64), exp(1.5) / (4 + exp(1.5)), 7 * 64, 1, 1, 2, 1],
    4: [96 / 6, 4 * 96**2, 0.2**2 / (0.8**2 + 0.2**2), 1, 2],
    5: [0, cos(7) + cos(0.7) + cos(0.07) + cos(0.007), 2, 2, e],
    6: [(9 - 6) / sqrt((9 + 9 + 1 + 1) / 5), 512 - 2, 1, 2 * 512 * 2048 + 512 + 2048, 2],
    7: [1 + 2 + 3 + 4 + 5, 1, log(3), 2, 2 * 6],
    8: [0.2 - 1, 0.3 - 0.1 / 4, 10 * 0.01, 1, 2, 1],
    9: [2, 2 * 2 + 2**3 * 2 * 2, 1, 0, 2],
    10: [0.6**2 / (0.6**2 + 0.3**2 + 0.1**2), 2, 1, 10 * 11 / 2, 0, 1 - 0.3, 1],
    11: [1 / 10, 2 * 0.5 - 1 + 0.5, 4, 1, 1, 2 * 512],
    12: [1, 2 * 512 + 2048, 6 * 1e9 * 2e10 / 1e20, 1, 1],
    13: [2 * exp(-2) + 1, 1, 1, 6 * (512 - 1), 1],
    14: [2 * 7 * 400 / 8, 2, 1, 0, 7 / 0.1 - 7],
}
