#!/bin/sh
# LLaDA 8B (Nie et al., 2025). NOT RUN HERE: no GPU and no hub. Its code needs
# transformers 4.38, so it runs in a process of its own, with another Python:
#     python -m venv old && old/bin/pip install "transformers==4.38.2" torch "numpy<2"
# Published, 128 samples: perplexities of at most 15.29 (WikiText), 39.04 (LAMBADA) and
# 85.17 (AG News), on the authors' texts and counts of tokens.
python evaluate.py --tasks wikitext,lambada_openai,piqa \
    --tokenizer GSAI-ML/LLaDA-8B-Base --mask-token 126336 --max-length 4096 \
    --model-args estimator=elbo,num_samples=128 \
    -- old/bin/python serve.py GSAI-ML/LLaDA-8B-Base --trust-remote-code
