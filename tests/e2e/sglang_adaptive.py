"""Run by SGLang's interpreter, or any: asks the real code of an adaptive config which steps it takes. FILE CONFIG STEPS -> JSON on stdout.

FILE is adaptive_spec_params.py of a release. Of what it imports from SGLang it needs only a logger here, so that stands in for all of it.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from types import ModuleType
from unittest.mock import MagicMock


class StandIns:
    """Finds nothing of sglang but these."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        return importlib.util.spec_from_loader(name, self) if name.partition(".")[0] == "sglang" else None

    def create_module(self, spec: object) -> ModuleType:
        module = MagicMock()
        module.__path__ = []
        return module

    def exec_module(self, module: ModuleType) -> None:
        return None


def main(file: str, config: str, steps: str) -> None:
    sys.meta_path.insert(0, StandIns())
    spec = importlib.util.spec_from_file_location("adaptive_spec_params", file)
    real = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(real)
    params = real.AdaptiveSpeculativeParams(int(steps), config)
    params.set_cuda_graph_bs([1, 2, 4, 8, 16, 32])
    sizes = (1, 2, 4, 8, 16, 32, 100)
    first = {size: params.get_steps_for_batch(size) for size in sizes}
    for accepted in (0, 5):  # whatever is accepted, nothing adapts
        for size in sizes:
            for _ in range(60):
                params.on_verify_complete([min(accepted, first[size])] * size, size)
    last = {size: params.get_steps_for_batch(size) for size in sizes}
    print(json.dumps({"first": first, "last": last, "buffers": real.resolve_candidate_steps_from_config(config)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
