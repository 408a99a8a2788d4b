"""Run by SGLang's own interpreter, `python load_sglang.py TARGET DRAFTER...`: its drafter classes load folders, without kernels."""

# the engine's packages exist in its own environment only
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src" / "draftsmith" / "engines" / "inside"))
import stand_ins

NOT_NEEDED = (
    "triton",
    "sgl_kernel",
    "flashinfer",
    "deep_gemm",
    "xgrammar",
    "outlines",
    "llguidance",
    "setproctitle",
    "uvloop",
    "cuda",
    "vllm",
)


def one_process(target: str) -> None:
    """The state that a scheduler process makes before it loads models."""
    from sglang.srt import server_args
    from sglang.srt.distributed import get_tp_group, init_distributed_environment, initialize_model_parallel
    from sglang.srt.layers import dp_attention

    args = server_args.ServerArgs.__new__(server_args.ServerArgs)
    for field in dataclasses.fields(server_args.ServerArgs):
        made = field.default_factory() if field.default_factory is not dataclasses.MISSING else None
        setattr(args, field.name, made if field.default is dataclasses.MISSING else field.default)
    args.model_path, args.device, args.attention_backend = target, "cpu", "torch_native"
    server_args.set_global_server_args_for_scheduler(args)
    meet = f"file://{tempfile.mkdtemp()}/meet"
    init_distributed_environment(world_size=1, rank=0, local_rank=0, distributed_init_method=meet, backend="gloo")
    initialize_model_parallel(1)
    for name in ("_ATTN_TP_SIZE", "_ATTN_DP_SIZE", "_LOCAL_ATTN_DP_SIZE"):
        setattr(dp_attention, name, 1)
    for name in ("_ATTN_TP_RANK", "_ATTN_DP_RANK", "_LOCAL_ATTN_DP_RANK"):
        setattr(dp_attention, name, 0)
    dp_attention._ENABLE_DP_ATTENTION_FLAG = False
    dp_attention._ATTN_TP_GROUP = get_tp_group()


def loaded(folder: Path) -> dict[str, Any]:
    import torch
    from loaded import compare, fill_with_nan
    from safetensors.torch import load_file
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.models.registry import ModelRegistry

    config = ModelConfig(str(folder), dtype="bfloat16", is_draft_model=True).hf_config
    model = ModelRegistry.resolve_model_cls(config.architectures)[0](config, quant_config=None)
    fill_with_nan(model)
    tensors = load_file(folder / "model.safetensors")
    model.load_weights(iter(tensors.items()))
    found = compare(model, folder, {"d2t": "", "t2d": ""})
    if "d2t" in tensors and not torch.equal(model.hot_token_id, tensors["d2t"] + torch.arange(len(tensors["d2t"]))):
        found["different"].append("d2t")
    return found


def main(target: str, *folders: str) -> None:
    stand_ins.torchvision_operators()
    stand_ins.kernels_not_there(stand_ins.stand_in(NOT_NEEDED))
    import torch
    from loaded import report

    one_process(target)
    torch.set_default_dtype(torch.bfloat16)
    report({Path(folder).name: loaded(Path(folder)) for folder in folders})


if __name__ == "__main__":
    main(*sys.argv[1:])
