"""verify replay: does the drafter alone reach what training measured and what is served? Begin with run.py; rounds.py serves the stage, too."""
