"""vLLM (GPU build and CPU build): command line, counters, log."""
