"""Interleaved timing of candidates."""

from lambdanets_lab.timing import time_interleaved


class Clock:
    """A fake clock that only the runs advance."""

    def __init__(self):
        self.now, self.order = 0.0, []

    def run(self, name, seconds):
        def work():
            self.order.append(name)
            self.now += seconds

        return work


def time_runs(durations, repeats=6, seconds=100.0):
    clock = Clock()
    runs = {name: clock.run(name, duration) for name, duration in durations.items()}
    samples = time_interleaved(runs, repeats=repeats, seconds=seconds, clock=lambda: clock.now)
    return clock.order[len(durations) :], samples  # without the warm-up runs


def test_every_candidate_runs_once_per_round():
    order, samples = time_runs({"a": 1.0, "b": 2.0, "c": 3.0})
    rounds = [order[i : i + 3] for i in range(0, len(order), 3)]
    assert [sorted(names) for names in rounds] == [["a", "b", "c"]] * 6
    assert samples == {"a": [1.0] * 6, "b": [2.0] * 6, "c": [3.0] * 6}


def test_slow_candidate_gets_fewer_runs():
    _, samples = time_runs({"fast": 1.0, "slow": 50.0, "slower": 300.0}, repeats=30, seconds=220.0)
    assert {name: len(times) for name, times in samples.items()} == {"fast": 30, "slow": 5, "slower": 3}
