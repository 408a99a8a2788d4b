"""The stages in their order, and what each one answers. Imports nothing, so that `draftsmith --help` is quick."""

STAGES: dict[str, str] = {
    "check": "can this target, drafter, engine version and flag set work at all?",
    "breakeven": "what acceptance length would pay here, at each concurrency?",
    "data": "prompts -> the target's own answers -> token ids and loss mask",
    "capture": "the target's hidden states at the tapped boundaries, in a checksummed store",
    "train": "train the drafter",
    "export": "write one drafter folder that the engines load",
    "verify": "same logits after export? lossless? acceptance as predicted?",
    "serve": "start the engine with the drafter once and look at what is in effect",
    "bench": "baseline and drafter, launches in turn: speed-up with its interval",
    "report": "verdict, plots and evidence as HTML, Markdown and JSON",
}
