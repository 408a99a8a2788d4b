"""verify wiring: what the running engine hands to the drafter. run.py asks it, features.py compares, words.py says what it means."""
