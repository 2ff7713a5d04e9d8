#!/bin/sh
# Dream 7B (Ye et al., 2025). NOT RUN HERE: no GPU and no hub. Its scores are shifted by
# one, and every text begins with its start token; configuration and tokenizer name the
# mask. Its README says 2048 tokens, fewer than its configuration does.
lm_eval --model latent_mdm --tasks wikitext,lambada_openai,piqa \
    --model_args pretrained=Dream-org/Dream-v0-Base-7B,trust_remote_code=True,dtype=bfloat16,max_length=2048,estimator=elbo,num_samples=128
