"""Tiny runs for the tests of trackers: their flags, their records, and one that is killed."""

import json

import pytest
from plain_run import PLAIN

from c2v_sim.run import __main__ as run

TINY = "--model linear --train-size 240 --test-size 120 --partition by-domain --rounds 6"
TINY += " --clients-per-domain 2 --participation 0.25 --local-epochs 1 --checkpoint-every 2"
TINY = [*TINY.split(), *PLAIN]


def records_of(folder):
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def stopped(out, monkeypatch, after, *flags):
    """The run ends without a word after the records of `after` rounds, as when it is killed."""
    trained = run.Journal.round_done

    def stop(self, record):
        trained(self, record)
        if record.round == after:
            raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(run.Journal, "round_done", stop)
        with pytest.raises(SystemExit):
            run.main([*flags])
