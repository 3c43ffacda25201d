"""The pages that ``talkspurt.reference`` writes are those that it writes now.

This lies beside the test of the configuration's page, since who changes what one says often changes the others.
"""

from pathlib import Path

import pytest

from talkspurt.reference.__main__ import PAGES
from talkspurt.reference.table import table

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_up_to_date(name: str) -> None:
    made = PAGES[name]()
    assert (DOCS / name).read_text() == made, "python -m talkspurt.reference docs"


def test_every_field_that_a_client_may_send_is_explained_or_explains_itself() -> None:
    page = (DOCS / "http-api.md").read_text()
    body = page.partition("### PlaceCallBody")[2].partition("### ")[0]
    assert "* `to`: string (at most 500 characters). " in body and "calling.allowed_targets" in body


def test_a_table_leaves_out_what_is_empty_and_keeps_its_columns() -> None:
    assert table(("a", "b", "c"), [("1", "", "x|y"), ("2", "", "")]) == (
        "| a | c |\n| --- | --- |\n| 1 | x\\|y |\n| 2 |  |\n"
    )
