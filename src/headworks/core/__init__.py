"""The admission core: facts and the time go in, effects come out. Standard library only, no I/O, no clock, no randomness."""
