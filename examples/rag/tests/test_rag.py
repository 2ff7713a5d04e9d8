"""The laws of lm_latent_eval, and the sum over documents as the truth."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from latent_rag import RAG, RAGConfig
from latent_rag.__main__ import write
from latent_rag.documents import DOCUMENTS, retrieve
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

import lm_latent_eval
from lm_latent_eval.extend import UNKNOWN, Case, TokenBatch, laws


def tiny() -> Case:
    """Three documents of two words, in float64."""
    model = RAG(RAGConfig(vocab_size=6, num_documents=3)).double().eval()
    model.requires_grad_(False).counts[:, 4:] = torch.tensor([[2, 0], [1, 3], [0, 1]])

    def every_document(text: list[int]) -> torch.Tensor:
        return torch.arange(3)[None, :, None].expand(1, 3, len(text))

    return Case(
        model,
        every_document,
        words=(1, 4, 5),
        proposals=model.proposal_names,
        given=(4, 4, 5),
    )


@pytest.mark.parametrize("law", laws(tiny()), ids=str)
def test_it_keeps_the_law(law):
    law()


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rag")
    write(folder)
    return lm_latent_eval.load(folder, device="cpu")


def log_p(model: RAG, vocabulary: int, question: list[str], answer: list[str]) -> float:
    """Log p(y | x), document by document, from their words."""
    documents = [document.split() for document in DOCUMENTS]
    _, own, uniform = model.sources.double().softmax(0).tolist()
    shares, total = [], 0.0
    for document in documents:
        score = sum(
            math.log1p(len(documents) / (1 + sum(word in d for d in documents)))
            for word in question
            if word in document
        )
        p = [
            own * document.count(word) / len(document) + uniform / (vocabulary + 1)
            for word in answer
        ]
        shares.append(math.exp(score))
        total += shares[-1] * math.prod(p)
    return math.log(total / sum(shares))


QUESTIONS = {
    "who has written the amber tide": " hanne brunander",
    "where does the river go": " the salt lake",
}


def test_answers_have_the_sum_over_documents(opened):
    vocabulary = len(opened.checkpoint.tokenizer.vocabulary)
    found = opened.log_likelihood([*QUESTIONS.values()], contexts=[*QUESTIONS])
    for (question, answer), estimate in zip(QUESTIONS.items(), found, strict=True):
        model = opened.checkpoint.model
        exact = log_p(model, vocabulary, question.split(), answer.split())
        assert estimate.log_evidence == pytest.approx(exact, abs=1e-5)
        assert str(estimate.bound) == "exact"
    assert UNKNOWN in opened.checkpoint.tokenizer("who has").ids, "premise: not known"


def test_the_question_chooses_the_document(opened):
    [of_river] = opened.log_likelihood([" river"], contexts=["where is the river"])
    [of_school] = opened.log_likelihood([" river"], contexts=["where is the school"])
    assert of_river.log_evidence > of_school.log_evidence + 0.5


MIXTURE = Path(__file__).parents[1] / "mixture.yaml"
OPTIONS = (" hanne brunander", " the school", " the salt lake", " laskhaven")


def test_a_mixture_over_retrieved_documents_is_the_same_sum(opened, tmp_path):
    """The generator given a document, by ``latent_mixture``, against ``RAG``."""
    write(tmp_path, generator=True)
    mixed = get_model("latent_mixture")(
        mixture=str(MIXTURE),
        base="latent",
        model="latent_rag:Generator",
        pretrained=str(tmp_path),
        trust_retriever=True,
        device="cpu",
    )
    pairs = [(question, option) for question in QUESTIONS for option in OPTIONS]
    asked = [
        Instance("loglikelihood", {}, pair, n, metadata=("task", n, 1))
        for n, pair in enumerate(pairs)
    ]
    found = [score for score, _ in mixed.loglikelihood(asked)]
    questions, answers = zip(*pairs, strict=True)
    truth = opened.log_likelihood([*answers], contexts=[*questions])
    for score, estimate in zip(found, truth, strict=True):
        assert score == pytest.approx(estimate.log_evidence, rel=1e-6)
        assert str(score.estimate.bound) == str(estimate.bound) == "exact"
    parts = found[0].answer.parts
    joint = [a + b for a, b in zip(parts.log_weights, parts.log_p, strict=True)]
    carried = parts.names[joint.index(max(joint))]
    assert carried == ("document 1",), "what hanne brunander wrote"


def test_the_retriever_is_that_of_the_model(opened):
    tokenizer, model = opened.checkpoint.tokenizer, opened.checkpoint.model
    for question in QUESTIONS:
        given = TokenBatch.collate([tokenizer(question).ids], first=UNKNOWN)
        weights = torch.tensor([row["weight"] for row in retrieve(question)])
        expected = (weights / weights.sum()).double().log()
        assert torch.allclose(model.retrieve(given)[0], expected, atol=1e-6)


def test_nothing_is_called_without_consent(tmp_path):
    write(tmp_path, generator=True)
    with pytest.raises(ValueError, match=r"latent_rag.documents:retrieve.*trust_ret"):
        get_model("latent_mixture")(
            mixture=str(MIXTURE), base="latent", pretrained=str(tmp_path)
        )
