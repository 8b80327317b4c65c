"""Jitter and back-off, which spread the load of many nodes."""

from __future__ import annotations

from statistics import mean

from agent.daemon.schedule import NodeSchedule


def test_a_node_does_the_same_after_a_restart() -> None:
    one, other = NodeSchedule("gpu-7"), NodeSchedule("gpu-7")

    assert [one.first_interval(60), *(one.next_interval(60) for _ in range(9))] == [
        other.first_interval(60),
        *(other.next_interval(60) for _ in range(9)),
    ]


def test_nodes_that_start_together_are_spread_over_the_whole_interval() -> None:
    minute = [0] * 6
    for number in range(15_000):
        minute[int(NodeSchedule(f"gpu-{number}").first_interval(60) // 10)] += 1

    assert all(2300 < count < 2700 for count in minute)  # 2,500 each, give or take four standard deviations


def test_intervals_vary_by_a_tenth() -> None:
    schedule = NodeSchedule("gpu-7")
    beats = [schedule.next_interval(60) for _ in range(1000)]

    assert 54 <= min(beats) < 56
    assert 64 < max(beats) <= 66
    assert 59 < mean(beats) < 61


def test_back_off_doubles_up_to_a_minute_minus_up_to_a_half() -> None:
    for failures, longest in ((1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (5000, 60)):
        waits = [NodeSchedule(f"gpu-{number}").backoff(failures) for number in range(200)]

        assert longest / 2 <= min(waits) < 0.55 * longest
        assert 0.95 * longest < max(waits) <= longest
