"""Loading, checking and running of pretrained transformers networks.

``network`` has a network with its tokenizer, ``causal`` reads those that predict the
next token, ``masked`` those that predict masked ones.
"""
