"""Facts from papers, each stored once, with its source, for texts, pictures and questions."""

from typing import Any, NamedTuple

from toy_tasks.ablation import ROWS


class Fact(NamedTuple):
    """What a paper says, and where: the first author and the year as in PAPERS, and the place."""

    paper: str
    place: str
    value: Any


# Rows of Table 3 by their names in toy_tasks/ablation.py, whose base has d_model 96 and
# 4 heads of 24.
OF_TABLE_3 = {"base": "base", "h = 1": "A heads 1", "h = 4": "A heads 2", "h = 16": "A heads 8"}
OF_TABLE_3 |= {"h = 32": "A heads 16", "d_k = 16": "B d_k 6", "d_k = 32": "B d_k 12"}
OF_TABLE_3 |= {"d_{model} = 1024": "C d_model 192"}
FACTS = {
    # BLEU on newstest2014 and operations of training, English to German and to French.
    "BLEU and operations": Fact(
        "Vaswani 2017",
        "Table 2",
        {
            "ByteNet": (23.75, None, None, None),
            "Deep-Att + PosUnk": (None, 39.2, None, 1.0e20),
            "GNMT + RL": (24.6, 39.92, 2.3e19, 1.4e20),
            "ConvS2S": (25.16, 40.46, 9.6e18, 1.5e20),
            "MoE": (26.03, 40.56, 2.0e19, 1.2e20),
            "Deep-Att + PosUnk, ensemble": (None, 40.4, None, 8.0e20),
            "GNMT + RL, ensemble": (26.30, 41.16, 1.8e20, 1.1e21),
            "ConvS2S, ensemble": (26.36, 41.29, 7.7e19, 1.2e21),
            "Transformer (base)": (27.3, 38.1, 3.3e18, 3.3e18),
            "Transformer (big)": (28.4, 41.8, 2.3e19, 2.3e19),
        },
    ),
    "BLEU of variations": Fact(
        "Vaswani 2017", "Table 3", {name: ROWS[row][2] for name, row in OF_TABLE_3.items()}
    ),
    "parameters": Fact("Vaswani 2017", "Table 3", {"base": 65e6, "big": 213e6}),
    "tokens of a batch": Fact("Vaswani 2017", "section 5.1", 25_000),  # of source and of target
    "processors": Fact("Vaswani 2017", "section 5.2", 8),
    "hours of training": Fact("Vaswani 2017", "section 5.2", {"base": 12, "big": 84}),
    "steps of training": Fact("Vaswani 2017", "section 5.2", {"base": 100_000, "big": 300_000}),
    "operations a second": Fact("Vaswani 2017", "footnote 5", 9.5e12),  # of a P100
    # L = E + A / N^alpha + B / D^beta
    "E, A, B, alpha, beta": Fact("Hoffmann 2022", "equation 10", (1.69, 406.4, 410.7, 0.34, 0.28)),
    "symbols for each parameter": Fact("Hoffmann 2022", "Table 3", 20),
    "best size for a petaflop/s-day": Fact("Kaplan 2020", "figure 14", 1.3e9),
    # loss ~ N^-p, loss ~ D^-q, best N ~ C^a
    "p, q, a": Fact("Kaplan 2020", "section 1.2", (0.076, 0.095, 0.73)),
}


def fact(name: str) -> Any:
    """The value of one of FACTS."""
    return FACTS[name].value
