"""The simple recurrent language model of the RNNLM toolkit."""
