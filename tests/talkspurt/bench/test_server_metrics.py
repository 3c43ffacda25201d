from talkspurt.bench.server_metrics import counted, histograms, quantiles_ms


def exposition(a: int, b: int, c: int) -> str:
    return (
        "# TYPE x_seconds histogram\n"
        f'x_seconds_bucket{{transport="a",le="0.01"}} {a}\n'
        f'x_seconds_bucket{{transport="a",le="0.1"}} {b}\n'
        f'x_seconds_bucket{{transport="a",le="+Inf"}} {b}\n'
        f'x_seconds_bucket{{transport="b",le="0.01"}} {c}\n'
        f'x_seconds_bucket{{transport="b",le="0.1"}} {c}\n'
        f'x_seconds_bucket{{transport="b",le="+Inf"}} {c}\n'
    )


def test_labels_are_summed_and_absent_histograms_are_empty() -> None:
    found = histograms(exposition(1, 4, 10), ["x_seconds", "y_seconds"])
    assert found == {"x_seconds": {0.01: 11, 0.1: 14, float("inf"): 14}, "y_seconds": {}}


def test_quantiles_are_of_what_was_counted_in_between() -> None:
    before = histograms(exposition(100, 100, 0), ["x_seconds"])["x_seconds"]
    after = histograms(exposition(190, 200, 0), ["x_seconds"])["x_seconds"]
    assert quantiles_ms(before, after) == {"p50_le": 10, "p95_le": 100, "p99_le": 100, "n": 100}
    assert quantiles_ms(after, after) is None
    assert quantiles_ms({}, {}) is None


def test_a_counter_is_summed_over_the_labels_that_are_not_named() -> None:
    lines = ["# TYPE y_total counter"]
    lines += [f'y_total{{outcome="{outcome}",worker="{worker}"}} 2' for outcome in ("hit", "miss") for worker in (0, 1)]
    text = "\n".join(lines) + "\n"
    assert counted(text, "y_total", outcome="miss") == 4
    assert counted(text, "y_total") == 8
    assert counted(text, "z_total") == 0
