"""Settings of the bench stage."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from draftsmith.measure.loads import Load, closed_shapes, load_from
from draftsmith.settings import MOST_CONCURRENCY, MOST_LAUNCHES, MOST_REQUESTS, Gate, Settings

Seconds = Annotated[float, Field(gt=0)]
NAMED_PROMPTS = ("heldout", "builtin", "five")  # anything else is a file


class OpenLoad(Settings):
    """Requests that do not wait for the server: at random moments (poisson), or as a file says (trace)."""

    kind: Literal["poisson", "trace"]
    rate: float | None = Field(default=None, gt=0, description="requests a second (poisson)")
    file: str | None = Field(default=None, description="JSONL with prompts and `at_s` (trace)")
    speed: float = Field(default=1.0, gt=0, description="2 replays a trace in half its time")
    max_concurrency: int | None = Field(default=None, ge=1)
    requests: int = Field(
        default=100, ge=2, le=MOST_REQUESTS, description="measured requests per launch (a trace: at most as many as it holds)"
    )
    warmup_requests: int = Field(default=8, ge=1, le=MOST_REQUESTS)

    @model_validator(mode="after")
    def fields_of_its_kind(self) -> OpenLoad:
        wanted = "rate" if self.kind == "poisson" else "file"
        if getattr(self, wanted) is None:
            raise ValueError(f"a {self.kind} load needs {wanted}")
        return self

    def load(self) -> Load:
        """As the client takes it."""
        fields: dict[str, Any] = {"rate": self.rate} if self.kind == "poisson" else {"file": self.file, "speed": self.speed}
        return load_from({"kind": self.kind, "max_concurrency": self.max_concurrency, **fields})


class BenchSettings(Settings):
    """The paired experiment. A pair is one baseline and one speculative launch; pairs alternate A B, B A.

    Three pairs with short windows beat two with long ones in the same time: 3 degrees of freedom against 2, and a start costs less
    than the t factor saves (see measure/statistics.py).
    """

    pairs: int = Field(
        default=3, ge=2, le=MOST_LAUNCHES, description="pairs of launches; with pairs_max: before the first look at the intervals"
    )
    pairs_max: int | None = Field(
        default=None, le=MOST_LAUNCHES, description="most pairs; from `pairs` on, each pair is followed by a look that may end it"
    )
    noise_launches: int = Field(
        default=0, ge=0, le=MOST_LAUNCHES, description="baseline launches before the pairs that show what two equal launches differ by"
    )
    early_reject: bool = Field(default=True, description="end when accept_len is below break-even everywhere after 200 rounds")
    concurrency: tuple[int, ...] = (1, 8)
    requests: tuple[int, ...] | None = Field(
        default=None, description="measured per launch, for each concurrency; default 10 x concurrency"
    )
    warmup_requests: tuple[int, ...] | None = Field(default=None, description="before the measured ones; default 2 x concurrency")
    loads: tuple[OpenLoad, ...] = Field(default=(), description="open loads, measured after the closed loops")
    prompts: str = Field(
        default="heldout", description="heldout (of the data stage), builtin, five (fib, qsort, arith, json, haiku), or a file"
    )
    endpoint: Literal["completions", "chat", "generate"] = "completions"
    warmup_tokens: int = Field(default=8, ge=2, description="length of the warm-up answers")
    output_tokens: int | tuple[int, ...] = Field(
        default=96, description="most tokens per answer, thinking included; it may end earlier. Several: a cell for each, like [256, 1024]"
    )
    reasoning: Literal["template", "on", "off"] = Field(
        default="template", description="thinking of reasoning models (chat): as the template has it, or asked for, or asked not to"
    )
    temperature: float = Field(default=0.0, ge=0)
    canary_tokens: int = Field(default=32, ge=2, description="length of the fixed single request that every launch answers")
    start_together: bool = Field(default=False, description="start both arms of a pair side by side; one at a time is measured")
    gpu_sets: tuple[tuple[int, ...], ...] = Field(default=(), description="two sets of GPUs; the arms swap them from pair to pair")
    mode: Literal["launch", "sleep"] = Field(default="launch", description="sleep: one server per arm, put to sleep while the other runs")
    max_foreign_cpu: float | None = Field(default=None, gt=0, le=1, description="share of the host that others may use in a valid launch")
    slo: dict[Literal["ttft_s", "ttfo_s", "tpot_s", "e2e_s"], Seconds] = Field(default={}, description="limits that goodput is counted by")
    min_speedup: float = Field(default=1.0, gt=0, description="gate: exit code 0 when the lower bound at `gate_concurrency` is above it")
    gate_concurrency: int | None = Field(default=None, description="default: the first concurrency")
    gates: tuple[Gate, ...] = Field(default=(), description="several gates instead of that one, each like 1.1@4")
    seed: int = 0

    @field_validator("gates", mode="before")
    @classmethod
    def one_is_a_list(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    def files(self) -> tuple[Path, ...]:
        """The file of prompts and the traces."""
        traces = tuple(Path(load.file) for load in self.loads if load.file is not None)
        return traces if self.prompts in NAMED_PROMPTS else (Path(self.prompts), *traces)

    @property
    def lengths(self) -> tuple[int, ...]:
        """`output_tokens`, as a tuple."""
        return (self.output_tokens,) if isinstance(self.output_tokens, int) else self.output_tokens

    @property
    def last_pair(self) -> int:
        """Most pairs there will be."""
        return self.pairs_max or self.pairs

    @property
    def all_gates(self) -> tuple[Gate, ...]:
        """`gates`, or the one of min_speedup and gate_concurrency; none without a closed loop."""
        if self.gates or not self.concurrency:
            return self.gates
        return (Gate(min_speedup=self.min_speedup, concurrency=self.gate_concurrency or self.concurrency[0]),)

    def shapes(self) -> list[tuple[int, int, int]]:
        """(concurrency, measured requests, warm-up requests) of the closed loops."""
        return closed_shapes(self.concurrency, self.requests, self.warmup_requests)

    @model_validator(mode="after")
    def lists_fit_together(self) -> BenchSettings:
        n = len(self.concurrency)
        if not n and not self.loads:
            raise ValueError("nothing to measure: give concurrency or loads")
        for name in ("requests", "warmup_requests"):
            values = getattr(self, name)
            if values is not None and len(values) != n:
                raise ValueError(f"{name} has {len(values)} numbers, concurrency has {n}: give one for each concurrency")
        if n and (min(self.concurrency) < 1 or len(set(self.concurrency)) != n):
            raise ValueError(f"concurrency is {list(self.concurrency)}; expected different numbers from 1 up")
        for concurrency, requests, warmup in self.shapes():
            if concurrency > MOST_CONCURRENCY or max(requests, warmup) > MOST_REQUESTS:
                found = f"{requests} requests and {warmup} of warm-up at concurrency {concurrency}"
                raise ValueError(f"{found}: at most {MOST_REQUESTS} requests, and {MOST_CONCURRENCY} at a time")
            if requests < 2 * concurrency:
                least = f"at least {2 * concurrency}"
                raise ValueError(f"requests: {requests} at concurrency {concurrency} would keep its slots busy for a moment only; {least}")
            if warmup < 1:
                raise ValueError("warmup_requests: every concurrency needs a warm-up of one request or more")
        for gate in self.all_gates:
            if gate.concurrency not in self.concurrency:
                raise ValueError(f"gate at concurrency {gate.concurrency}, which is not in concurrency {list(self.concurrency)}")
        return self

    @model_validator(mode="after")
    def answers_that_can_be_asked_for(self) -> BenchSettings:
        if not self.lengths or min(self.lengths) < 8 or len(set(self.lengths)) != len(self.lengths):
            raise ValueError(f"output_tokens is {list(self.lengths)}; expected different numbers from 8 up")
        if self.reasoning != "template" and self.endpoint != "chat":
            raise ValueError(
                f"reasoning {self.reasoning} is for the chat endpoint, where the server has the template; not for {self.endpoint}"
            )
        return self

    @model_validator(mode="after")
    def experiment_that_can_be_meant(self) -> BenchSettings:
        if self.pairs_max is not None and self.pairs_max < self.pairs:
            raise ValueError(f"pairs_max {self.pairs_max} is below pairs {self.pairs}")
        if self.noise_launches == 1:
            raise ValueError("noise_launches: one launch shows no difference; give 0, or 2 or more")
        if self.gpu_sets and (
            len(self.gpu_sets) != 2 or not all(self.gpu_sets) or len(set(sum(self.gpu_sets, ()))) != len(sum(self.gpu_sets, ()))
        ):
            raise ValueError(
                f"gpu_sets is {[list(group) for group in self.gpu_sets]}; expected two sets without a common GPU, like [[0], [1]]"
            )
        if self.mode == "sleep" and (self.gpu_sets or self.start_together or self.noise_launches):
            raise ValueError("mode sleep has one server per arm: without gpu_sets, start_together and noise_launches")
        return self
