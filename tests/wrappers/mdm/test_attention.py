"""Networks whose attention is causal over blocks, with and without what is kept."""

from __future__ import annotations

import math
from itertools import permutations
from types import SimpleNamespace

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from lm_latent_eval.harness.wrappers.mdm import LatentMDM
from lm_latent_eval.networks.masked import BlockCausal
from lm_latent_eval.networks.network import Network
from lm_latent_eval.scoring.generation import GenerationOptions
from lm_latent_eval.scoring.texts import Query
from lm_latent_eval.wrappers.mdm.model import MaskedDiffusion
from tests.tiny_checkpoint import rolling
from tests.wrappers.mdm import own_code, tiny

TEXT, TOKENS = "the fox saw Ada . a Bo", (5, 6, 7, 8, 10, 11, 9)

BLOCK = 3


def qwen():
    config = Qwen3Config(
        vocab_size=len(tiny.VOCABULARY),
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=4,
        intermediate_size=12,
        max_position_embeddings=20,
    )
    return tiny.lopsided(Qwen3ForCausalLM(config), spread=0.5)


@pytest.fixture(scope="module")
def decoder():
    return qwen()


def scores(model, tokens):
    """One pass over a whole text by the mask of the paper, nothing kept."""
    block = torch.arange(len(tokens)) // BLOCK
    sees = block[None] <= block[:, None]
    mask = torch.zeros(sees.shape, dtype=torch.float64).masked_fill(~sees, -1e300)
    with torch.no_grad():
        return model(
            input_ids=torch.tensor([tokens]), attention_mask=mask[None, None]
        ).logits[0]


def log_p(model, tokens, given=0, shift=0):
    """Log p of tokens after some, every order of every block listed."""
    total = 0.0
    for first in range(given - given % BLOCK, len(tokens), BLOCK):
        places = range(max(first, given), min(first + BLOCK, len(tokens)))
        each = []
        for order in permutations(places):
            hidden, nats = set(order), 0.0
            for place in order:
                text = [*tokens[: places[-1] + 1]]
                for i in hidden:
                    text[i] = tiny.MASK
                rows = scores(model, text).clone()
                rows[:, tiny.MASK] = -torch.inf
                nats += float(rows[place - shift].log_softmax(-1)[tokens[place]])
                hidden -= {place}
            each.append(nats)
        own = torch.tensor(each, dtype=torch.float64)
        total += float(own.logsumexp(0)) - math.log(len(own))
    return total


def opened(model, **options):
    network = Network.of(model, tiny.tokenizer(start=True), max_length=20)
    how = {"attention": "block_causal", "block_length": BLOCK, "logit_shift": 0}
    return MaskedDiffusion(network).scorer({**how, **options}, quiet=True)


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("context", ["", "the fox saw Ada"])
def test_a_decoder_is_read_block_by_block(decoder, context, shift):
    """Of a context's last block what is left is predicted, given the rest of it."""
    query = Query(0, "q", TEXT.removeprefix(context), context)
    scorer = opened(decoder, logit_shift=shift)
    score = scorer.score_continuations if context else scorer.score_texts
    [answer] = score([query])
    # Shifted scores of a text's first token are those of the one that begins it.
    tokens, given = (tiny.BEGIN,) * shift + TOKENS, shift + len(context.split())
    wanted = log_p(decoder, tokens, given, shift)
    assert answer.estimate.log_evidence == pytest.approx(wanted, abs=1e-10)
    assert str(answer.estimate.bound) == "exact"
    if not (context or shift):
        assert answer.evaluations == 2 * (2**BLOCK - 1) + 1


def test_what_options_share_is_read_once(decoder):
    """Tokens that the network reads: a context of six, and four options of three."""
    read = []
    model = qwen()
    forward = model.forward

    def counting(input_ids, **more):
        read.append(input_ids.numel())
        return forward(input_ids=input_ids, **more)

    model.forward = counting
    scorer = opened(model)
    read.clear()
    context = "the fox saw Ada . a"
    options = [" Bo saw the", " Bo saw a", " Ada saw the", " the Bo ."]
    asked = [Query(n, f"q/{n}", text, context) for n, text in enumerate(options)]
    found = list(scorer.score_continuations(asked))
    assert len(found) == 4
    rows = (sum(read) - 6) / 3
    # Seven sets each; all masked is one of all, and some pairs share more of them.
    assert rows <= 4 * 6 + 1
    alone = [
        next(opened(decoder).score_continuations([each])).estimate.log_evidence
        for each in asked
    ]
    together = {answer.index: answer.estimate.log_evidence for answer in found}
    assert [together[n] for n in range(4)] == pytest.approx(alone, abs=1e-10)


def test_what_is_written_is_greedy(decoder):
    how = {"unmasking": "confidence"}
    scorer = opened(decoder, **how)
    greedy = GenerationOptions((), 5, 0.0)
    [(_, text)] = scorer.generate([(Query(0, "q", "", "the fox"), greedy)])
    [answer] = scorer.score_continuations([Query(0, "q", text, "the fox")])
    assert answer.is_greedy


def test_a_cache_that_forgets_gives_the_same(decoder, monkeypatch):
    monkeypatch.setattr("lm_latent_eval.networks.masked.KEPT", 1)
    reader = BlockCausal(decoder, BLOCK)
    for length in (7, 4, 7):
        tokens = torch.tensor([TOKENS[:length]])
        first = (length - 1) // BLOCK * BLOCK
        found = reader.read_on(tokens, first)[0]
        wanted = scores(decoder, TOKENS[:length])[first - 1 :]
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)


def test_a_network_that_asks_for_truth_and_stores_when_told(decoder):
    """As SDAR's code does: a mask of what is seen, and ``store_kv``."""

    def own_code(input_ids, attention_mask, store_kv, **more):
        assert attention_mask.dtype == torch.bool and store_kv
        added = torch.zeros(attention_mask.shape, dtype=torch.float64)
        added = added.masked_fill(~attention_mask, -1e300)
        return decoder(input_ids=input_ids, attention_mask=added, **more)

    own_code.device, own_code.dtype = decoder.device, decoder.dtype
    reader = BlockCausal(own_code, BLOCK, None, True, {"store_kv": True})
    tokens = torch.tensor([TOKENS, [*TOKENS[:6], 5]])
    found = reader.read_on(tokens, 6)
    for row, text in zip(found, tokens.tolist(), strict=True):
        wanted = scores(decoder, text)[5:]
        torch.testing.assert_close(row, wanted, rtol=0, atol=1e-10)


def test_lm_eval_opens_a_decoder_that_is_said_to_be_one(decoder, tmp_path):
    decoder.save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    how = {"pretrained": str(tmp_path), "device": "cpu", "logit_shift": 0}
    with pytest.raises(ValueError, match="a qwen3 is a causal model"):
        LatentMDM(**how)
    with pytest.raises(ValueError, match=r"nothing says how many tokens .* give block"):
        LatentMDM(**how, attention="block_causal")
    lm = LatentMDM(**how, attention="block_causal", block_length=BLOCK)
    [found] = lm.loglikelihood_rolling(rolling(TEXT))
    assert found == pytest.approx(log_p(decoder, TOKENS), abs=1e-10)
    said = lm.fingerprint["process"]
    assert said == (
        "blocks of 3 from the left, later blocks not read; any_order, one token a step"
    )


def test_bd3lm_is_read_as_its_configuration_says(tmp_path):
    """It masks its attention itself where it is told to sample."""
    directory = own_code.write(tmp_path, "bd3lm", block_size=BLOCK)
    how = {"pretrained": str(directory), "device": "cpu", "trust_remote_code": True}
    lm = LatentMDM(**how)
    assert lm.fingerprint["attention"] == "block_causal"
    assert lm.fingerprint["block_length"] == BLOCK
    inner = tiny.network("bert").model

    def bert(input_ids, attention_mask):
        return SimpleNamespace(
            logits=inner(input_ids=input_ids, attention_mask=attention_mask).logits
        )

    [found] = lm.loglikelihood_rolling(rolling(TEXT))
    assert found == pytest.approx(log_p(bert, TOKENS), abs=1e-9)
    with pytest.raises(ValueError, match=r"block_length=2: .* over blocks of 3"):
        LatentMDM(**how, block_length=2)
