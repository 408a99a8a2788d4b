"""verify lossless: do two servers give the same answers? run.py says which two, audit.py what is asked and what follows."""
