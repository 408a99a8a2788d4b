"""What an audit asks for and how it decides; and the probes that there are."""

from __future__ import annotations

from dataclasses import dataclass

from draftsmith.errors import UsageError

PROBES = ("json", "tools", "stop", "logprobs", "long")
PARTS = ("greedy", "sampling", *PROBES)


@dataclass(frozen=True)
class Way:
    """One way of sampling. top_k 0: no limit."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    @property
    def label(self) -> str:
        more = (f", top_p {self.top_p:g}" if self.top_p < 1 else "") + (f", top_k {self.top_k}" if self.top_k else "")
        return f"temperature {self.temperature:g}{more}"

    @classmethod
    def of(cls, text: str) -> Way:
        """temperature=1,top_p=0.9. Raises UsageError."""
        values: dict[str, float] = {}
        for word in text.split(","):
            name, _, value = word.partition("=")
            if (
                name not in ("temperature", "top_p", "top_k")
                or not value.replace(".", "", 1).isdecimal()
                or (name == "top_k" and "." in value)
            ):
                raise UsageError(
                    f"--sampling {text!r}: {word!r} is not known", hint="for example --sampling temperature=1,top_p=0.9,top_k=20"
                )
            values[name] = float(value)
        way = cls(values.get("temperature", 1.0), values.get("top_p", 1.0), int(values.get("top_k", 0)))
        if not 0 < way.temperature <= 10 or not 0 < way.top_p <= 1:
            raise UsageError(f"--sampling {text!r}: there is nothing to sample", hint="temperature above 0, top_p above 0 and at most 1")
        return way


@dataclass(frozen=True)
class Audit:
    """Sizes and limits. alpha: chance of a false alarm of each statistical decision (near-tie budget, sampling).

    prompts, output_tokens, concurrency: of the greedy part.   near_tie: largest logit gap at which rounding may decide (logits).
    sampled_prompts x samples answers of sampled_tokens tokens for each way and server.   largest_tv: a shift of this total variation
    must be found with 80 % power, or the sampling part is inconclusive.   least_tokens: of the greedy part, below it is inconclusive.
    long_tokens: length of the long reply, cut at the context.   context: tokens that the servers have room for, None: as they tell.
    """

    prompts: int = 24
    output_tokens: int = 128
    concurrency: int = 8
    near_tie: float = 0.5
    alpha: float = 0.001
    sampled_prompts: int = 8
    samples: int = 400
    sampled_tokens: int = 6
    ways: tuple[Way, ...] = (Way(),)
    largest_tv: float = 0.25
    least_tokens: int = 300
    long_tokens: int = 2048
    context: int | None = None
    skip: frozenset[str] = frozenset()
    seed: int = 0

    def __post_init__(self) -> None:
        numbers = ("prompts", "output_tokens", "concurrency", "sampled_prompts", "samples", "sampled_tokens", "long_tokens")
        for name in numbers:
            if getattr(self, name) < 1:
                option = {"prompts": "num-prompts"}.get(name, name.replace("_", "-"))
                raise UsageError(f"--{option} {getattr(self, name)} is less than 1", hint="give a whole number from 1 up")
        if self.context is not None and self.context < 1:
            raise UsageError(f"--context {self.context} is less than 1", hint="leave it out, and the servers are asked")
        if self.near_tie < 0:
            raise UsageError(f"--near-tie {self.near_tie:g}: a gap of logits is not negative", hint="for example --near-tie 0.5")
        if not 0 < self.largest_tv < 1:
            raise UsageError(f"--largest-tv {self.largest_tv:g}: expected a distance between 0 and 1", hint="for example --largest-tv 0.25")
        if unknown := self.skip - set(PARTS):
            raise UsageError(f"--skip {', '.join(sorted(unknown))} is not known", hint=f"one of {', '.join(PARTS)}")
        if self.skip >= set(PARTS):
            raise UsageError("everything is skipped", hint="leave at least one part")
