"""Stands in for SGLang's package: `PYTHONPATH=tests/fake_sglang python -m sglang.launch_server` serves with known times."""
