"""The config of SGLang, vLLM and z-lab folders: one flat config.json. Also what fc and the weights say about it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from draftsmith.convert.detect import DSPARK_CLASSES, MLA_CLASSES
from draftsmith.convert.drafter import Asked, Drafter
from draftsmith.convert.heads import Vocab
from draftsmith.convert.limits import SLIDING, causality, layer_kinds
from draftsmith.convert.source import Source
from draftsmith.convert.writing import Config
from draftsmith.models.taps import SGLANG_DEPTH_FROM_IDS_SINCE

DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "bfloat16": "bfloat16", "float16": "float16", "float32": "float32"}


def finish_plain(drafter: Drafter, source: Source, asked: Asked, config: Config, vocab: Vocab) -> None:
    """Class, head, taps, rope and type."""
    settle(drafter, config, "architectures", "architectures", [class_name(drafter, asked)], "the class that reads this layout")
    said = drafter.value("model_type")
    kind = said if said and said != drafter.layout else {"llama": "llama", "qwen3": "qwen3", "mla": "deepseek_v3"}[drafter.layer]
    settle(drafter, config, "model_type", "model_type", kind, "" if "model_type" in drafter.fields else "the kind of layer")
    config.ensure("vocab_size", vocab.vocab_size, "rows of the target's vocabulary")
    if drafter.layout in ("dflash", "dspark"):
        finish_block(drafter, asked, config, vocab)
    else:
        finish_eagle3(drafter, asked, config, vocab)
        count_taps(drafter, source, config, "")
    rope = drafter.value("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope:
        config.ensure("rope_theta", rope["rope_theta"], "from rope_parameters, for engines on transformers 4")
        if rope.get("rope_type", "default") != "default":
            scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
            config.ensure("rope_scaling", scaling, "from rope_parameters, for engines on transformers 4")
    if (dtype := stored_dtype(source)) and not {"dtype", "torch_dtype"} & config.flat.keys():
        config.ensure("torch_dtype", dtype, "the type of the weights")


def settle(drafter: Drafter, config: Config, name: str, path: str, value: Any, reason: str) -> None:
    """Write a field whose value may be another than the source's."""
    field = drafter.fields.get(name)
    config.put(path, value, field.sources if field else (), reason, same=field is not None and field.value == value)


def class_name(drafter: Drafter, asked: Asked) -> str:
    """architectures[0] of the result."""
    said = str((drafter.value("architectures") or [""])[0])
    if drafter.layout == "dflash":
        return "DFlashDraftModel"
    if drafter.layout == "dspark":
        return said if said in DSPARK_CLASSES else "Qwen3DSparkModel"
    if drafter.layout == "eagle3_mla":
        return said if said in MLA_CLASSES and asked.format == "vllm" else MLA_CLASSES[0]
    return "Eagle3Qwen3ForCausalLM" if drafter.layer == "qwen3" else "LlamaForCausalLMEagle3"


def finish_eagle3(drafter: Drafter, asked: Asked, config: Config, vocab: Vocab) -> None:
    """draft_vocab_size: the rows of the head. SGLang needs the key, and null to borrow the target's head; vLLM borrows when it is full."""
    said, given = drafter.value("draft_vocab_size"), "draft_vocab_size" in drafter.fields
    if vocab.own_head:
        settle(drafter, config, "draft_vocab_size", "draft_vocab_size", vocab.draft_size, "rows of lm_head")
    elif vocab.tied or asked.format == "vllm":
        if given:
            settle(drafter, config, "draft_vocab_size", "draft_vocab_size", said, "")
    else:
        settle(drafter, config, "draft_vocab_size", "draft_vocab_size", None, "null: the target's head is borrowed")
    settle(drafter, config, "tie_word_embeddings", "tie_word_embeddings", vocab.tied, "true would make SGLang take the embedding as head")
    config.ensure("num_hidden_layers", 1, "one decoder layer")


def count_taps(drafter: Drafter, source: Source, config: Config, prefix: str) -> None:
    """num_aux_hidden_states where it is not 3: engines build fc for three taps unless they are told."""
    ledger, taps = config.ledger, drafter.taps
    if "fc.weight" not in drafter.tensors:
        ledger.impossible("tensor", "fc.weight", "it is missing: the drafter cannot be used")
        return
    width = drafter.value("target_hidden_size") or drafter.value("hidden_size")
    columns = source.shapes[drafter.tensors["fc.weight"]][1]
    if not width or columns % int(width):
        ledger.impossible("tensor", "fc.weight", f"it has {columns} columns, no multiple of the width {width} of a tapped state")
        return
    count, said = columns // int(width), drafter.value("num_taps")
    if taps.boundaries is not None and len(taps.boundaries) != count:
        ledger.impossible("tensor", "fc.weight", f"it takes {count} tapped states, the ids name {list(taps.boundaries)}; give --taps")
    elif said not in (None, count):
        ledger.impossible("config", drafter.fields["num_taps"].sources[0], f"it says {said}, fc.weight takes {count} tapped states")
    elif not taps.given and count != 3:
        ledger.impossible("tensor", "fc.weight", f"it takes {count} tapped states and no ids say which; give --taps")
    if count != 3:
        config.ensure(f"{prefix}num_aux_hidden_states", count, "engines build fc for 3 taps unless they are told")


def finish_block(drafter: Drafter, asked: Asked, config: Config, vocab: Vocab) -> None:
    """DFlash and DSpark: vocabulary, slots, causality."""
    field = drafter.fields.get("draft_vocab_size")
    if field and (vocab.reduced or field.sources == ("draft_vocab_size",)):
        config.put("draft_vocab_size", field.value, field.sources)
    elif field:
        config.drop(field.sources, "the vocabulary is full, which is this layout's rule")
    if asked.format != "vllm":
        write_depth(drafter, asked, config)
    if vocab.reduced and asked.format != "vllm":
        reason = f"{asked.format} takes the target's head: a reduced vocabulary of {vocab.draft_size} has no place"
        config.ledger.impossible("config", "draft_vocab_size", reason)
    if tie := drafter.fields.get("tie_word_embeddings"):
        config.put("tie_word_embeddings", tie.value, tie.sources)
    if anchor := drafter.fields.get("sample_from_anchor"):
        if drafter.layout == "dspark":
            config.put("sample_from_anchor", anchor.value, anchor.sources)
        else:
            config.drop(anchor.sources, "false is this layout's rule: the anchor is the last token, the slots follow it")
    full, sliding = causality(drafter)
    wanted = {full if kind != SLIDING else sliding for kind in layer_kinds(drafter)}
    rule = {kind == SLIDING for kind in layer_kinds(drafter)}
    sources = [path for name in ("causal", "sliding_window_non_causal") if name in drafter.fields for path in drafter.fields[name].sources]
    if len(wanted) == 1 and ("causal" in drafter.fields or wanted != rule):
        value = next(iter(wanted))
        config.put("is_causal", value, sources, "whether slots see later slots of their block", same=value == drafter.value("causal"))
    else:
        config.drop(sources, "this layout's rule for these layers: full ones look both ways, sliding ones back")


def write_depth(drafter: Drafter, asked: Asked, config: Config) -> None:
    """num_target_layers: without it SGLang once took the drafter's own depth for the target's, and stopped at the tap ids."""
    if "num_target_layers" in config.flat:
        return
    if asked.num_target_layers is not None:
        config.put("num_target_layers", asked.num_target_layers, reason="of the target: SGLang before 0.5.18 stops without it")
    elif asked.version < SGLANG_DEPTH_FROM_IDS_SINCE and max(drafter.taps.boundaries or (0,)) > drafter.num_layers:
        reason = f"it is absent, and SGLang {asked.version} then takes the drafter's {drafter.num_layers} layers for the target's and stops"
        config.ledger.impossible("config", "num_target_layers", f"{reason}; give --target")


def stored_dtype(source: Source) -> str | None:
    """The type of most floating tensors."""
    counts = Counter(DTYPES[dtype] for dtype in source.dtypes.values() if dtype in DTYPES)
    return counts.most_common(1)[0][0] if counts else None
