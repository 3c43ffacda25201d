"""No parser takes more than in proportion to its input: four times the input takes at most eight times as long.

A quadratic parser takes sixteen times as long, a linear one four. A ratio over eight is measured again, so a moment in
which the machine did something else fails nothing.
"""

import logging

import pytest

from tests.fuzz.scaling import SHAPES, growth


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # aiohttp warns of a header that is none
@pytest.mark.parametrize("name", SHAPES)
def test_time_grows_no_faster_than_the_input(name: str) -> None:
    logging.disable(logging.CRITICAL)
    try:
        ratios = []
        for _ in range(10):
            ratios.append(growth(SHAPES[name], factor=4, best_of=1)[2])
            if ratios[-1] <= 8:
                return
        pytest.fail(f"four times the input took {', '.join(f'{ratio:.1f}' for ratio in ratios)} times as long")
    finally:
        logging.disable(logging.NOTSET)
