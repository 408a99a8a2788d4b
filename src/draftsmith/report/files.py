"""Reading what finished stages left. A stage that has not finished is absent (None); a file that contradicts its format is an error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from draftsmith.errors import EnvironmentFailed
from draftsmith.job import Job
from draftsmith.manifest import Manifest, read_jsonl
from draftsmith.report.bench_parts import Counted, no_rounds_is_absent


@dataclass(frozen=True)
class Finished:
    """The finished stages of a run."""

    run: Path
    manifests: dict[str, Manifest]

    @classmethod
    def read(cls, job: Job, stages: tuple[str, ...]) -> Finished:
        """Manifests of those of `stages` that have finished."""
        found = {stage: Manifest.read(job.folder(stage)) for stage in stages}
        return cls(job.run, {stage: manifest for stage, manifest in found.items() if manifest is not None})

    def path(self, stage: str, name: str) -> Path:
        return self.run / stage / name

    def summary(self, stage: str) -> dict[str, Any] | None:
        """Summary in the manifest; None when the stage has not finished."""
        return self.manifests[stage].summary if stage in self.manifests else None

    def json(self, stage: str, name: str) -> Any:
        """A JSON file; None when the stage has not finished. Raises EnvironmentFailed when it is missing or not JSON."""
        if stage not in self.manifests:
            return None
        path = self.path(stage, name)
        with shaping(path):
            return json.loads(path.read_text())

    def lines(self, stage: str, name: str) -> list[dict[str, Any]] | None:
        """A JSONL file; None when the stage has not finished. Raises EnvironmentFailed when it is missing or damaged."""
        if stage not in self.manifests:
            return None
        path = self.path(stage, name)
        if not path.is_file():
            raise EnvironmentFailed(f"{stage} has finished, but {path} is missing", hint=f"run the {stage} stage again")
        return read_jsonl(path)


@contextmanager
def shaping(path: Path) -> Iterator[None]:
    """Turn what a file of another shape causes into one error that names the file."""
    hint = f"run the {path.parent.name} stage again: remove {path.parent} and repeat the command"
    try:
        yield
    except FileNotFoundError:
        raise EnvironmentFailed(f"{path.parent.name} has finished, but {path} is missing", hint=hint) from None
    except KeyError as error:
        raise EnvironmentFailed(f"{path} has no key {error}", hint=hint) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise EnvironmentFailed(f"{path} is malformed: {place}: {first['msg']}", hint=hint) from None
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise EnvironmentFailed(f"{path} is malformed: {error}", hint=hint) from error


def acceptance(content: dict[str, Any] | None) -> dict[str, Any] | None:
    """Acceptance recomputed from the counts; None stays None, and so does a count over no rounds."""
    if no_rounds_is_absent(content) is None:
        return None
    return Counted.model_validate(content).model_dump()
