"""Causal LMs summed over the tokenizations of a string.

    p(s) = sum_z p(z),  z over the sequences of tokens that decode to s

A language model over tokens gives a string as many probabilities as the string has
segmentations; ``--model hf`` reports that of one of them, the tokenizer's own
("canonical"). Here the others are searched for and drawn.

Source: Cao and Rimell (2021) for the sum and importance sampling; Vieira et al. (2024)
for prefixes that a token overruns. All code is our own.
"""
