import json
import subprocess
import sys
from pathlib import Path


def test_compiled_models_are_one_graph_with_the_same_gradients() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.models.compiled"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    deviations = json.loads(done.stdout.splitlines()[-1])
    assert len(deviations) == 6
    assert all(deviation < 1e-5 for deviation in deviations.values()), deviations
