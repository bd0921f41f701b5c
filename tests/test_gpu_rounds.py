"""bench/gpu_rounds.py runs where there is no GPU, at a tiny size."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "bench" / "gpu_rounds.py"


def test_every_way_is_timed(tmp_path):
    file = tmp_path / "times.json"
    size = ["--tiny", "--models", "mlp", "cnn", "--batch-sizes", "8", "--rounds", "1"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *size, "--json", str(file)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    mlp, cnn = json.loads(file.read_text())["rows"]
    assert [row["seconds"].keys() for row in (mlp, cnn)] == [{"1", "2", "stacked"}] * 2
    assert all(t > 0 for t in (*mlp["seconds"].values(), *cnn["seconds"].values()))
    assert (mlp["auto"], cnn["auto"]) == ("stacked", "lanes")  # what a CPU does
    assert "cnn, batch 8: 1 " in done.stdout
