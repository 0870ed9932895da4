"""Where the papers that lessons name can be read: by first author and year."""

import re

ARXIV, DOI = "https://arxiv.org/abs/", "https://doi.org/"
PAPERS = {
    "Ba 2016": ARXIV + "1607.06450",
    "Bahdanau 2015": ARXIV + "1409.0473",
    "Bengio 1994": DOI + "10.1109/72.279181",
    "Britz 2017": ARXIV + "1703.03906",
    "Cho 2014": ARXIV + "1406.1078",
    "Elman 1990": DOI + "10.1207/s15516709cog1402_1",
    "Gers 2000": DOI + "10.1162/089976600300015015",
    "Geva 2021": ARXIV + "2012.14913",
    "Griewank 2008": DOI + "10.1137/1.9780898717761",
    "He 2016": ARXIV + "1512.03385",
    "Hochreiter 1997": DOI + "10.1162/neco.1997.9.8.1735",
    "Jain 2019": ARXIV + "1902.10186",
    "Kingma 2015": ARXIV + "1412.6980",
    "Liu 2018": ARXIV + "1801.10198",
    "Luong 2015": ARXIV + "1508.04025",
    "Michel 2019": ARXIV + "1905.10650",
    "Pascanu 2013": ARXIV + "1211.5063",
    "Press 2022": ARXIV + "2108.12409",
    "Ranzato 2016": ARXIV + "1511.06732",
    "Rumelhart 1986": DOI + "10.1038/323533a0",
    "Srivastava 2014": "https://jmlr.org/papers/v15/srivastava14a.html",
    "Su 2021": ARXIV + "2104.09864",
    "Sukhbaatar 2015": ARXIV + "1503.08895",
    "Sutskever 2014": ARXIV + "1409.3215",
    "Szegedy 2016": ARXIV + "1512.00567",
    "Vaswani 2017": ARXIV + "1706.03762",
    "Voita 2019": ARXIV + "1905.09418",
    "Weston 2015": ARXIV + "1410.3916",
    "Wiegreffe 2019": ARXIV + "1908.04626",
    "Williams 1989": DOI + "10.1162/neco.1989.1.2.270",
    "Xiong 2020": ARXIV + "2002.04745",
}
AUTHORS = r"\b([A-Z]\w+)(?:, [A-Z]\w+)*(?: and [A-Z]\w+| et al\.)?\s(\d{4})\b"


def linked(html: str) -> str:
    """HTML in which each paper that is named leads to its text."""

    def link(named: re.Match) -> str:
        url = PAPERS.get(f"{named[1]} {named[2]}")
        return f'<a href="{url}">{named[0]}</a>' if url else named[0]

    return re.sub(AUTHORS, link, html)
