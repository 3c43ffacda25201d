from gateway.cluster.metrics_sum import add

ONE = """# HELP calls_total Ended calls.
# TYPE calls_total counter
calls_total{outcome="completed"} 3.0
# HELP calls_created Ended calls.
# TYPE calls_created gauge
calls_created{outcome="completed"} 100.5
# HELP talkspurt_calls_active Live calls.
# TYPE talkspurt_calls_active gauge
talkspurt_calls_active 2.0
# HELP talkspurt_build_info The program.
# TYPE talkspurt_build_info gauge
talkspurt_build_info{version="a b"} 1.0
"""
TWO = """# HELP calls_total Ended calls.
# TYPE calls_total counter
calls_total{outcome="completed"} 4.0
calls_total{outcome="failed"} 1.0
# HELP calls_created Ended calls.
# TYPE calls_created gauge
calls_created{outcome="completed"} 99.5
# HELP talkspurt_calls_active Live calls.
# TYPE talkspurt_calls_active gauge
talkspurt_calls_active 5.0
# HELP talkspurt_build_info The program.
# TYPE talkspurt_build_info gauge
talkspurt_build_info{version="a b"} 1.0
"""


def test_counts_and_shares_are_sums_and_what_all_see_alike_is_not() -> None:
    assert add([ONE, TWO]).splitlines() == [
        "# HELP calls_total Ended calls.",
        "# TYPE calls_total counter",
        'calls_total{outcome="completed"} 7.0',
        'calls_total{outcome="failed"} 1.0',
        "# HELP calls_created Ended calls.",
        "# TYPE calls_created gauge",
        'calls_created{outcome="completed"} 99.5',
        "# HELP talkspurt_calls_active Live calls.",
        "# TYPE talkspurt_calls_active gauge",
        "talkspurt_calls_active 7.0",
        "# HELP talkspurt_build_info The program.",
        "# TYPE talkspurt_build_info gauge",
        'talkspurt_build_info{version="a b"} 1.0',
    ]


def test_what_a_dead_worker_has_counted_stays_and_what_it_held_goes() -> None:
    added = add([ONE], [TWO])
    assert 'calls_total{outcome="completed"} 7.0' in added and 'calls_total{outcome="failed"} 1.0' in added
    assert "talkspurt_calls_active 2.0" in added and 'calls_created{outcome="completed"} 100.5' in added
