"""Where the papers that lessons name can be read: by first author and year."""

import re

ARXIV, DOI = "https://arxiv.org/abs/", "https://doi.org/"
PAPERS = {
    "Ainslie 2023": ARXIV + "2305.13245",
    "Ba 2016": ARXIV + "1607.06450",
    "Bahdanau 2015": ARXIV + "1409.0473",
    "Beltagy 2020": ARXIV + "2004.05150",
    "Bengio 1994": DOI + "10.1109/72.279181",
    "Britz 2017": ARXIV + "1703.03906",
    "Brown 2020": ARXIV + "2005.14165",
    "Chen 2016": ARXIV + "1604.06174",
    "Child 2019": ARXIV + "1904.10509",
    "Cho 2014": ARXIV + "1406.1078",
    "Dao 2022": ARXIV + "2205.14135",
    "Dao 2024": ARXIV + "2405.21060",
    "Devlin 2019": ARXIV + "1810.04805",
    "Dosovitskiy 2021": ARXIV + "2010.11929",
    "Elhage 2021": "https://transformer-circuits.pub/2021/framework/index.html",
    "Elman 1990": DOI + "10.1207/s15516709cog1402_1",
    "Gers 2000": DOI + "10.1162/089976600300015015",
    "Geva 2021": ARXIV + "2012.14913",
    "Griewank 2008": DOI + "10.1137/1.9780898717761",
    "Gu 2022": ARXIV + "2111.00396",
    "Gu 2023": ARXIV + "2312.00752",
    "He 2016": ARXIV + "1512.03385",
    "Hochreiter 1997": DOI + "10.1162/neco.1997.9.8.1735",
    "Hoffmann 2022": ARXIV + "2203.15556",
    "Huang 2019": ARXIV + "1811.06965",
    "Jain 2019": ARXIV + "1902.10186",
    "Jiang 2023": ARXIV + "2310.06825",
    "Kaplan 2020": ARXIV + "2001.08361",
    "Katharopoulos 2020": ARXIV + "2006.16236",
    "Kingma 2015": ARXIV + "1412.6980",
    "Li 2020": ARXIV + "2006.15704",
    "Liu 2018": ARXIV + "1801.10198",
    "Luong 2015": ARXIV + "1508.04025",
    "Michel 2019": ARXIV + "1905.10650",
    "McCandlish 2018": ARXIV + "1812.06162",
    "Micikevicius 2018": ARXIV + "1710.03740",
    "Milakov 2018": ARXIV + "1805.02867",
    "Narayanan 2021": ARXIV + "2104.04473",
    "Olsson 2022": ARXIV + "2209.11895",
    "Pascanu 2013": ARXIV + "1211.5063",
    "Patarasuk 2009": DOI + "10.1016/j.jpdc.2008.09.002",
    "Press 2022": ARXIV + "2108.12409",
    "Rabe 2021": ARXIV + "2112.05682",
    "Radford 2023": ARXIV + "2212.04356",
    "Rajbhandari 2020": ARXIV + "1910.02054",
    "Raffel 2020": ARXIV + "1910.10683",
    "Ranzato 2016": ARXIV + "1511.06732",
    "Rumelhart 1986": DOI + "10.1038/323533a0",
    "Schlag 2021": ARXIV + "2102.11174",
    "Shazeer 2019": ARXIV + "1911.02150",
    "Shazeer 2020": ARXIV + "2002.05202",
    "Shoeybi 2019": ARXIV + "1909.08053",
    "Srivastava 2014": "https://jmlr.org/papers/v15/srivastava14a.html",
    "Su 2021": ARXIV + "2104.09864",
    "Sukhbaatar 2015": ARXIV + "1503.08895",
    "Sutskever 2014": ARXIV + "1409.3215",
    "Szegedy 2016": ARXIV + "1512.00567",
    "Touvron 2023": ARXIV + "2302.13971",
    "Vaswani 2017": ARXIV + "1706.03762",
    "Voita 2019": ARXIV + "1905.09418",
    "Weston 2015": ARXIV + "1410.3916",
    "Wiegreffe 2019": ARXIV + "1908.04626",
    "Williams 1989": DOI + "10.1162/neco.1989.1.2.270",
    "Xiao 2024": ARXIV + "2309.17453",
    "Xiong 2020": ARXIV + "2002.04745",
    "Zaheer 2020": ARXIV + "2007.14062",
    "Zhang 2019": ARXIV + "1910.07467",
}
AUTHORS = r"\b([A-Z]\w+)(?:,\s[A-Z]\w+)*(?:\sand\s[A-Z]\w+|\set\sal\.)?\s(\d{4})\b"


def linked(html: str) -> str:
    """HTML in which each paper that is named links to its text."""

    def link(named: re.Match) -> str:
        url = PAPERS.get(f"{named[1]} {named[2]}")
        return f'<a href="{url}">{named[0]}</a>' if url else named[0]

    return re.sub(AUTHORS, link, html)
