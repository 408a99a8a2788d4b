"""A tune on mock servers in a process of its own, for the test that kills it."""

import sys
from pathlib import Path

from tune_world import SMALL, conclude_on

from mock_server import Behaviour, mock_starter

if __name__ == "__main__":
    conclude_on(
        Path(sys.argv[1]),
        SMALL,
        mock_starter(lambda p: Behaviour(accepted=(1, 0), depth=p.depth, step_s=0.003) if p.depth else Behaviour(step_s=0.003)),
    )
