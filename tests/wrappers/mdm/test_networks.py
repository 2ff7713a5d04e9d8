"""Networks of every kind are read as they were trained, or refused."""

import importlib.util
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import transformers
from transformers import (
    BertForMaskedLM,
    BitsAndBytesConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from lm_latent_eval.estimators import Bound
from lm_latent_eval.harness.wrappers.mdm import LatentMDM
from lm_latent_eval.networks.masked import BlockCausal
from lm_latent_eval.networks.network import Network
from lm_latent_eval.scoring.generation import GenerationOptions
from lm_latent_eval.wrappers.mdm.model import MaskedDiffusion
from tests import tiny_causal
from tests.conftest import PROJECT
from tests.tiny_checkpoint import rolling
from tests.wrappers import asking
from tests.wrappers.mdm import own_code, tiny

# peft asks networks what transformers will not say for ever.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")

TEXT = "the fox saw Ada"
TOKENS = (5, 6, 7, 8)


def opened(directory, **how):
    """Open a directory as ``lm_eval`` does."""
    more = {"device": "cpu", "trust_remote_code": True, "estimator": "exact"}
    return LatentMDM(pretrained=str(directory), **more, **how)


def scored(lm):
    (found,) = lm.loglikelihood_rolling(rolling(TEXT))
    return found


def exact(model, before=(), after=()):
    """Log p of the text under a network, from all its orders."""
    target = tiny.TargetTokens(before, TOKENS, after)
    return tiny.Truth(tiny.denoiser(model), target).exact


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize("framed", [False, True])
def test_masked_lms_of_transformers(kind, framed):
    network = tiny.network(kind, framed=framed)
    marks = ((tiny.BEGIN,), (tiny.END,)) if framed else ()
    scorer = MaskedDiffusion(network).scorer({"estimator": "exact"}, quiet=True)
    found = asking.estimate(scorer, TEXT).log_evidence
    assert found == pytest.approx(exact(network.model, *marks), abs=1e-9)


START = {"prefix_token_id": tiny.BEGIN}
ASKED_FOR = {"mask_token": "[MASK]", "logit_shift": 0}


@pytest.mark.parametrize(
    ("kind", "how", "shift"),
    [
        ("llada", {}, 0),
        ("mdlm", {}, 0),
        ("Dream", {}, 1),
        ("Dream", START, 1),
        ("unheard_of", ASKED_FOR, 0),
    ],
    ids=str,
)
def test_networks_with_code_of_their_own(kind, how, shift, tmp_path):
    """Texts of Dream begin with a token that gives the scores of their first one."""
    own_code.write(tmp_path, kind, mask="mask_token" not in how)
    if how == START:  # nothing else says what that token is
        tiny.tokenizer().save_pretrained(tmp_path)
    lm = opened(tmp_path, **how)
    assert lm.fingerprint["logit_shift"] == shift
    assert lm.fingerprint["max_length"] == 20
    assert scored(lm) == pytest.approx(exact(None, (tiny.BEGIN,) * shift), abs=1e-9)


@pytest.mark.parametrize(
    ("kind", "more", "said"),
    [
        # Networks of ``model_type`` Dream exist whose scores are not shifted.
        ("Dream", {"architectures": ["DreamForCausalLM"]}, r"give logit_shift=0 .* or"),
        ("Dream", {"tokenizer": tiny.tokenizer()}, "shift=1: .* give prefix_token_id"),
        ("mdlm", {"time_conditioning": True}, "time_conditioning: the network's scor"),
        ("unheard_of", {}, r"give logit_shift=0 .* or logit_shift=1"),
        *(
            ("unheard_of", uniform, r"uniform-state .* nor p\(x \| order\) exist")
            for uniform in ({"graph": {"type": "uniform"}}, {"diffusion": "uniform"})
        ),
        ("gemma", {"tokenizer": tiny.tokenizer()}, "uniform-state diffusion"),
    ],
    ids=str,
)
def test_what_is_not_read_is_said(kind, more, said, tmp_path):
    tokenizer = (more := {**more}).pop("tokenizer", None)
    if kind == "gemma":  # a configuration of transformers
        if not hasattr(transformers, "DiffusionGemmaConfig"):
            pytest.skip("this transformers has no DiffusionGemma")
        transformers.DiffusionGemmaConfig().save_pretrained(tmp_path)
    else:
        own_code.write(tmp_path, kind, **more)
    if tokenizer is not None:
        tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=said):
        opened(tmp_path)


def test_positions_that_begin_after_padding_are_counted(tmp_path):
    """RoBERTa's table of 24 has places for 23 tokens, where padding is token 0."""
    network = tiny.network("roberta")
    tiny_causal.save(tmp_path, network.tokenizer, network.model)
    ids = torch.full((1, 24), 5)
    network.model(input_ids=ids[:, 1:])
    with pytest.raises((IndexError, RuntimeError)):
        network.model(input_ids=ids)
    assert Network.of(network.model, network.tokenizer).positions == 23
    lm = LatentMDM(pretrained=str(tmp_path), device="cpu", num_samples=8)
    assert lm.fingerprint["max_length"] == 23
    (answer,) = lm.loglikelihood_rolling(rolling(" ".join([TEXT] * 7)))
    assert answer.estimate.num_tokens == 28
    with pytest.raises(ValueError, match=r"max_length=24: .* positions for 23 tokens"):
        opened(tmp_path, max_length=24)


LEARNED = {
    "BertForMaskedLM": {"max_position_embeddings": 20},
    "GPT2LMHeadModel": {"n_positions": 20, "n_head": 2, "n_embd": 8, "n_layer": 1},
    "OPTForCausalLM": {"max_position_embeddings": 20, "ffn_dim": 8},
    "LlamaForCausalLM": {"max_position_embeddings": 20},
}


@pytest.mark.parametrize("name", LEARNED)
def test_more_tokens_than_a_network_has_positions_for_are_refused(name):
    """Where they are a table; what computes them reads on."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    given = {"vocab_size": 12, "intermediate_size": 8, "word_embed_proj_dim": 8}
    kind = getattr(transformers, name)
    marks = {"bos_token_id": 3, "eos_token_id": 4, "pad_token_id": 0}
    config = kind.config_class(**sizes, **given, **marks | LEARNED[name])
    model, ids = kind(config).eval(), torch.full((1, 21), 5)
    tokenizer = tiny.tokenizer()
    model(input_ids=ids[:, 1:])
    assert Network.of(model, tokenizer, max_length=20).positions == 20
    if name == "LlamaForCausalLM":
        model(input_ids=ids)
        assert Network.of(model, tokenizer, max_length=21).max_length == 21
        return
    with pytest.raises((IndexError, RuntimeError)):
        model(input_ids=ids)
    with pytest.raises(ValueError, match=r"max_length=21: .* positions for 20 tokens"):
        Network.of(model, tokenizer, max_length=21)


def test_contexts_that_are_cut_are_told_of(caplog):
    scorer = MaskedDiffusion(tiny.network()).scorer({"num_samples": 4}, quiet=True)
    for words in (18, 19, 25):
        context = " ".join(["the"] * words)
        asking.answers(scorer, " fox", " saw", context=context)
    lost = [r.getMessage() for r in caplog.records if "are cut" in r.getMessage()]
    assert [said.partition(", since")[0] for said in lost] == [
        "2 of 2 contexts are cut: up to 6 of their first tokens are left out"
    ]


def test_a_function_that_is_no_denoiser_is_refused():
    with pytest.raises(ValueError, match="is a causal model: it does not see the tok"):
        tiny.scorer_of(
            lambda tokens: tokens[..., None].double().cumsum(1), logit_shift=0
        )
    with pytest.raises(ValueError, match=r"scores of shape \(B, T, V\); got \(2, 3\)"):
        tiny.scorer_of(lambda tokens: tokens, logit_shift=0)


# -- adapters and quantized weights ---------------------------------------------------


def adapter(model, directory):
    """Write a LoRA of large weights for a network; return the network with it."""
    import peft

    config = peft.LoraConfig(r=2, target_modules=["query", "value"])
    adapted = peft.get_peft_model(model, config)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(generator=generator)
    # Without asking the hub for the vocabulary of a network that has no name there.
    adapted.save_pretrained(directory, save_embedding_layers=False)
    return adapted.double().eval().requires_grad_(False)


@pytest.mark.parametrize(("kind", "shift"), [("mdlm", 0), ("Dream", 1)])
def test_an_adapter_is_part_of_the_network_and_hides_nothing(kind, shift, tmp_path):
    """What it is called with (a time, MDLM), and whose scores a place has (Dream)."""
    directory = own_code.write(tmp_path, kind, vocab_size=len(tiny.VOCABULARY))
    plain = opened(directory)
    without = scored(plain)
    adapted = adapter(plain._loaded.model, tmp_path / "adapter")
    lm = opened(directory, peft=str(tmp_path / "adapter"))
    # Adapters compute in float32.
    rounding = 64 * torch.finfo(torch.float32).eps
    wanted = exact(adapted.base_model.model.inner, (tiny.BEGIN,) * shift)
    assert scored(lm) == pytest.approx(wanted, abs=rounding)
    assert scored(lm) != pytest.approx(without, abs=1e-3), "premise: it matters"
    assert lm.fingerprint["checkpoint"] != plain.fingerprint["checkpoint"]
    assert lm.fingerprint["logit_shift"] == shift


@pytest.mark.parametrize("bits", ["load_in_8bit", "load_in_4bit"])
@pytest.mark.filterwarnings("ignore:MatMul8bitLt", "ignore:You passed `quantization_")
def test_a_quantized_directory_is_read(bits, tmp_path):
    pytest.importorskip("bitsandbytes", reason="pip install bitsandbytes")
    plain, quantized = tmp_path / "plain", tmp_path / "quantized"
    model = tiny.masked_lm("Bert", hidden_size=64, intermediate_size=64)
    tiny.lopsided(model, spread=0.3).float().save_pretrained(plain)
    model = BertForMaskedLM.from_pretrained(
        plain, quantization_config=BitsAndBytesConfig(**{bits: True}), device_map="cpu"
    )
    model.save_pretrained(quantized)
    for folder in (plain, quantized):
        tiny.tokenizer().save_pretrained(folder)
    lm, full = opened(quantized), opened(plain)
    rounding = 64 * torch.finfo(torch.float32).eps
    assert scored(lm) == pytest.approx(exact(model), abs=rounding)
    assert scored(lm) != pytest.approx(scored(full), abs=1e-4), "premise: quantized"
    assert lm.fingerprint["checkpoint"] != full.fingerprint["checkpoint"]
    with pytest.raises(ValueError, match="load_in_4bit: transformers 5 takes this arg"):
        opened(plain, load_in_4bit=True)


# -- attention that is causal over blocks, with and without what is kept ---------------


SEVEN, SEVEN_TOKENS = "the fox saw Ada . a Bo", (5, 6, 7, 8, 10, 11, 9)

BLOCK = 3


@pytest.fixture(scope="module")
def decoder():
    config = Qwen3Config(**tiny.SIZE, num_key_value_heads=1, head_dim=4)
    return tiny.lopsided(Qwen3ForCausalLM(config), spread=0.5)


def scores(model, tokens):
    """One pass over a whole text by the mask of the paper, nothing kept."""
    block = torch.arange(len(tokens)) // BLOCK
    sees = block[None] <= block[:, None]
    mask = torch.zeros(sees.shape, dtype=torch.float64).masked_fill(~sees, -1e300)
    ids, mask = torch.tensor([tokens]), mask[None, None]
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask).logits[0]


def log_p(model, tokens, given=0, shift=0):
    """Log p of tokens after some, every order of every block listed."""
    plain = SimpleNamespace(
        scores=lambda text: scores(model, text[0].tolist()).roll(shift, 0)[None]
    )
    total = 0.0
    for block in range(given - given % BLOCK, len(tokens), BLOCK):
        first = max(block, given)
        target = tiny.TargetTokens(tokens[:first], tokens[first : block + BLOCK])
        total += tiny.Truth(plain, target).exact
    return total


def scorer_of(model, **options):
    network = Network.of(model, tiny.tokenizer(start=True), max_length=20)
    how = {"attention": "block_causal", "block_length": BLOCK, "logit_shift": 0}
    return MaskedDiffusion(network).scorer({**how, **options}, quiet=True)


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("context", ["", "the fox saw Ada"])
def test_a_decoder_is_read_block_by_block(decoder, context, shift):
    """Of a context's last block what is left is predicted, given the rest of it."""
    scorer, text = scorer_of(decoder, logit_shift=shift), SEVEN.removeprefix(context)
    [answer] = asking.answers(scorer, text, context=context)
    # Shifted scores of a text's first token are those of the one that begins it.
    tokens, given = (tiny.BEGIN,) * shift + SEVEN_TOKENS, shift + len(context.split())
    wanted = log_p(decoder, tokens, given, shift)
    assert answer.estimate.log_evidence == pytest.approx(wanted, abs=1e-10)
    assert str(answer.estimate.bound) == "exact"


@pytest.mark.parametrize("length", [1, 2])
def test_short_blocks_are_no_causal_model(decoder, monkeypatch, length):
    monkeypatch.setattr(sys.modules[__name__], "BLOCK", length)
    found = asking.estimate(scorer_of(decoder), SEVEN).log_evidence
    assert found == pytest.approx(log_p(decoder, SEVEN_TOKENS), abs=1e-10)


def test_what_options_share_is_read_once(decoder):
    """Tokens that the network reads: a context of six, and four options of three."""
    scorer, context = scorer_of(decoder), "the fox saw Ada . a"
    options = [" Bo saw the", " Bo saw a", " Ada saw the", " the Bo ."]
    with asking.watched(decoder) as shapes:
        answers = asking.answers(scorer, *options, context=context)
    rows = (sum(rows * tokens for rows, tokens in shapes) - 6) / 3
    # Seven sets each; all masked is one of all, and some pairs share more of them.
    assert rows <= 4 * 6 + 1
    alone = [asking.estimate(scorer, each, context).log_evidence for each in options]
    together = [answer.estimate.log_evidence for answer in answers]
    assert together == pytest.approx(alone, abs=1e-10)


def test_what_is_written_is_greedy_and_ends_where_the_network_says(
    decoder, monkeypatch
):
    scorer = scorer_of(decoder, unmasking="confidence")
    asked = [(*asking.queries("", context="the fox"), GenerationOptions((), 5, 0.0))]
    [(_, text)] = scorer.generate(asked)
    [answer] = asking.answers(scorer, text, context="the fox")
    assert answer.is_greedy
    last = text.split()[-1]
    end = scorer.network.tokenizer.convert_tokens_to_ids(last)
    monkeypatch.setattr(decoder.generation_config, "eos_token_id", [0, end])
    [(_, ended)] = scorer.generate(asked)
    assert ended.split() == text.split()[: text.split().index(last)]


def test_a_cache_that_forgets_gives_the_same(decoder, monkeypatch):
    monkeypatch.setattr("lm_latent_eval.networks.masked.KEPT", 1)
    reader = BlockCausal(decoder, BLOCK)
    for length in (7, 4, 7):
        tokens = torch.tensor([SEVEN_TOKENS[:length]])
        first = (length - 1) // BLOCK * BLOCK
        found = reader.read_on(tokens, first)[0]
        wanted = scores(decoder, SEVEN_TOKENS[:length])[first - 1 :]
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)
    [(_, last)] = reader._kept.values()
    assert last.untyped_storage().nbytes() == last.nbytes, "of one place"


def test_a_network_that_asks_for_truth_and_stores_when_told(decoder):
    """As SDAR's code does: a mask of what is seen, and ``store_kv``."""

    def own_code(input_ids, attention_mask, store_kv, **more):
        assert attention_mask.dtype == torch.bool and store_kv
        added = torch.zeros(attention_mask.shape, dtype=torch.float64)
        added = added.masked_fill(~attention_mask, -1e300)
        return decoder(input_ids=input_ids, attention_mask=added, **more)

    own_code.device, own_code.dtype = decoder.device, decoder.dtype
    own_code.forward = decoder.forward
    reader = BlockCausal(own_code, BLOCK, None, True, {"store_kv": True})
    tokens = torch.tensor([SEVEN_TOKENS, [*SEVEN_TOKENS[:6], 5]])
    found = reader.read_on(tokens, 6)
    for row, text in zip(found, tokens.tolist(), strict=True):
        wanted = scores(decoder, text)[5:]
        torch.testing.assert_close(row, wanted, rtol=0, atol=1e-10)


def test_lm_eval_opens_a_decoder_that_is_said_to_be_one(decoder, tmp_path):
    tiny_causal.save(tmp_path, tiny.tokenizer(), decoder)
    how = {"logit_shift": 0, "attention": "block_causal"}
    with pytest.raises(ValueError, match=r"nothing says how many tokens .* give block"):
        opened(tmp_path, **how)
    lm = opened(tmp_path, **how, block_length=BLOCK)
    [found] = lm.loglikelihood_rolling(rolling(SEVEN))
    assert found == pytest.approx(log_p(decoder, SEVEN_TOKENS), abs=1e-10)
    assert "blocks of 3" in lm.fingerprint["process"]


def test_bd3lm_is_read_as_its_configuration_says(tmp_path):
    """It masks its attention itself where it is told to sample."""
    directory = own_code.write(tmp_path, "bd3lm", block_size=BLOCK)
    lm = opened(directory)
    assert lm.fingerprint["attention"] == "block_causal"
    assert lm.fingerprint["block_length"] == BLOCK
    [found] = lm.loglikelihood_rolling(rolling(SEVEN))
    wanted = log_p(tiny.network().model, SEVEN_TOKENS)
    assert found == pytest.approx(wanted, abs=1e-9)
    with pytest.raises(ValueError, match=r"block_length=2: .* over blocks of 3"):
        opened(directory, block_length=2)


# -- narrow types --------------------------------------------------------------------


def in_float32():
    network = tiny.network()
    return replace(network, model=network.model.float())


@pytest.mark.parametrize("estimator", ["elbo", "is"])
def test_what_is_rounded_is_not_called_exact(estimator):
    """A text of one token has one order, and short ones have few sets of masks."""
    network = in_float32()
    texts = ["Ada", "the fox"][: 2 if estimator == "elbo" else 1]

    def bounds(network):
        scorer = MaskedDiffusion(network).scorer({"estimator": estimator}, quiet=True)
        estimates = [answer.estimate for answer in asking.answers(scorer, *texts)]
        return [(e.bound, e.stderr) for e in estimates]

    sure = {Bound.EXACT, Bound.STRICT_LOWER}
    assert all(bound in sure and error == 0 for bound, error in bounds(network))
    mixed = replace(network, mixed_precision=torch.bfloat16)
    assert bounds(mixed) == [(Bound.NONE, None)] * len(texts)


def test_mixed_precision_is_what_masked_networks_compute_in(tmp_path):
    network = in_float32()
    tiny_causal.save(tmp_path, network.tokenizer, network.model)
    how = {"device": "cpu", "mixed_precision_dtype": "bfloat16", "max_length": 20}
    lm = LatentMDM(pretrained=tmp_path, num_samples=8, **how)
    assert lm.fingerprint["dtype"] == "torch.bfloat16"
    mixed = replace(network, mixed_precision=torch.bfloat16)
    scorers = [MaskedDiffusion(n).scorer({"num_samples": 8}) for n in (mixed, network)]
    estimates = [asking.estimate(each, TEXT) for each in (lm._scorer, *scorers)]
    found, expected, exact = (each.log_evidence for each in estimates)
    assert found == expected != exact


@pytest.mark.nightly
def test_another_process_gives_the_same_numbers(tmp_path):
    """The example of a network that another process computes."""
    example, network = PROJECT / "examples" / "diffusion", tiny.network("bert").model
    spec = importlib.util.spec_from_file_location("ask", example / "evaluate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    network.save_pretrained(tmp_path)
    serve = [sys.executable, str(example / "serve.py"), str(tmp_path)]
    how = ["--auto-class", "AutoModelForMaskedLM", "--dtype", "float64"]
    remote = module.Remote([*serve, *how, "--device", "cpu"])
    options = {"estimator": "is", "num_samples": 8}

    def log_p(logits):
        scorer = tiny.scorer_of(logits, **options)
        answers = asking.answers(scorer, "the fox saw", "Bo")
        return [answer.estimate.log_evidence for answer in answers]

    try:
        found = log_p(remote)
    finally:
        remote.close()
    wanted = log_p(lambda tokens: network(input_ids=tokens).logits.float())
    # Scores travel as float32, and are rounded once.
    assert found == pytest.approx(wanted, rel=32 * torch.finfo(torch.float32).eps)
