"""Observers: a logger of one's own is told of a run, and cannot end it."""

import threading

import pytest
from federations import image_federation

from c2v_sim import RunConfig, Simulator
from c2v_sim.system.errors import Interrupted

CONFIG = RunConfig(model="linear", rounds=4, participation=0.5, local_epochs=1, batch_size=8)


@pytest.fixture
def simulator():
    made = Simulator(image_federation(), CONFIG)
    yield made
    made.close()


class Remembers:
    def __init__(self):
        self.told = []

    def on_start(self, simulator):
        self.told.append(("start", simulator.config.rounds, simulator.round))

    def on_round(self, record):
        self.told.append(("round", record.round, record.accuracy))

    def on_finish(self, result):
        self.told.append(("finish", len(result.records)))


def test_a_logger_of_ones_own_has_five_lines(simulator, tmp_path):
    class Log:
        def on_start(self, simulator):
            self.file = (tmp_path / "log.txt").open("w")

        def on_round(self, record):
            print(record.round, record.accuracy, file=self.file, flush=True)  # fmt: skip

    result = simulator.run(observers=[Log()])
    lines = [f"{r.round} {r.accuracy}" for r in result.records]
    assert (tmp_path / "log.txt").read_text().splitlines() == lines
    assert len(lines) == 4


def test_everything_is_told_in_order_and_the_result_is_that_of_a_run_unobserved(simulator):
    first, second = Remembers(), Remembers()
    result = simulator.run(observers=[first, second])
    rounds = [("round", r.round, r.accuracy) for r in result.records]
    assert first.told == second.told == [("start", 4, 0), *rounds, ("finish", 4)]
    alone = Simulator(image_federation(), CONFIG)
    assert [r.weights for r in alone.run().records] == [r.weights for r in result.records]
    assert (alone.server.data == simulator.server.data).all()
    alone.close()


def test_one_that_fails_is_left_out_with_one_warning(simulator, capsys):
    class Fails(Remembers):
        def on_round(self, record):
            super().on_round(record)
            if record.round == 2:
                raise ConnectionError("the server is gone")

    fails, other = Fails(), Remembers()
    result = simulator.run(observers=[fails, other])
    assert len(result.records) == 4
    assert [what for what, *_ in fails.told] == ["start", "round", "round"]
    assert [what for what, *_ in other.told] == ["start", *["round"] * 4, "finish"]
    line = "warning: Fails ends here: the server is gone. The run goes on without it\n"
    assert capsys.readouterr().err == line


def test_a_run_that_is_stopped_is_finished_for_the_observers(simulator):
    class Stops(Remembers):
        def on_round(self, record):
            super().on_round(record)
            assert isinstance(simulator.stop, threading.Event)
            simulator.stop.set()

    observer = Stops()
    with pytest.raises(Interrupted):
        simulator.run(observers=[observer])
    assert [what for what, *_ in observer.told] == ["start", "round", "finish"]
    assert observer.told[-1] == ("finish", 1)


class Misspelt:
    def on_rounds(self, record):
        pass


@pytest.mark.parametrize(
    ("observer", "wrong"),
    [
        (Misspelt(), "Misspelt has on_rounds; known: on_start, on_round, on_finish"),
        (print, "builtin_function_or_method has no method that is called"),
        (Remembers, "Remembers is a class; give an object of it"),
    ],
)
def test_what_could_never_be_told_is_refused_before_the_first_round(simulator, observer, wrong):
    with pytest.raises(ValueError, match="observers: ") as error:
        simulator.run(observers=[observer])
    assert wrong in str(error.value)
    assert simulator.round == 0
