"""Three models that are one step each: semi-Markov, pointer network, transducer."""
