"""A bench on mock servers in a process of its own, for the test that kills it."""

import sys
from pathlib import Path

from bench_world import ACCEPTED, run

from mock_server import Behaviour

if __name__ == "__main__":
    run(Path(sys.argv[1]), lambda p: Behaviour(accepted=ACCEPTED, depth=3, step_s=0.003) if p.depth else Behaviour(step_s=0.003))
