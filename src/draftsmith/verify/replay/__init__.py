"""verify replay: does the drafter alone reach what training measured and what is served? Begin with run.py; the stage uses rounds.py."""
