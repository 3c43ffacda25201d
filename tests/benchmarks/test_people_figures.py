"""The intervals of the bench against published values."""

from __future__ import annotations

import pytest

from benchmarks.people.figures import poisson, wilson


def test_the_interval_of_a_count_is_garwoods() -> None:
    # Values of the exact table in Ulm, "A simple method to calculate the confidence interval of a standardized
    # mortality ratio", 1990.
    assert poisson(0) == pytest.approx((0.0, 3.689), abs=2e-3)
    assert poisson(10) == pytest.approx((4.795, 18.390), abs=2e-3)


def test_the_interval_of_a_share_is_wilsons() -> None:
    # Newcombe, "Two-sided confidence intervals for the single proportion", 1998, table I: 81 of 263, 0 of 20.
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
