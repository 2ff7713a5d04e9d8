#!/bin/sh
# Dream 7B (Ye et al., 2025). NOT RUN HERE: no GPU and no hub. Its scores are shifted by
# one; configuration and tokenizer name the mask.
lm_eval --model latent_mdm --tasks wikitext,lambada_openai,piqa \
    --model_args pretrained=Dream-org/Dream-v0-Base-7B,trust_remote_code=True,dtype=bfloat16,estimator=elbo,num_samples=128
