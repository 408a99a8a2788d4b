"""SGLang: command line, counters, log."""
