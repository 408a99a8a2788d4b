"""Stands in for SGLang's package in tests of the commands that start servers: `PYTHONPATH=tests/fake_sglang python -m sglang.launch_server`."""
