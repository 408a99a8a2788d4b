"""Run by SGLang's interpreter, or any: asks the real code of an adaptive config which steps it takes. FILE CONFIG STEPS -> JSON on stdout.

FILE is adaptive_spec_params.py of a release. Of what it imports from SGLang it needs only a logger here, so that stands in for all of it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location, spec_from_loader
from types import ModuleType
from unittest.mock import MagicMock


class StandIns(MetaPathFinder, Loader):
    """Finds nothing of sglang but these."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /) -> ModuleSpec | None:
        return spec_from_loader(fullname, self) if fullname.partition(".")[0] == "sglang" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return MagicMock(__path__=[])

    def exec_module(self, module: ModuleType) -> None:
        return None


def main(file: str, config: str, steps: str) -> None:
    sys.meta_path.insert(0, StandIns())  # pyright: ignore[reportArgumentType]
    spec = spec_from_file_location("adaptive_spec_params", file)
    assert spec is not None and spec.loader is not None
    real = module_from_spec(spec)
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
