"""The laws of lm_latent_eval, and the sum over documents as the truth."""

from __future__ import annotations

import math

import pytest
import torch
from latent_rag import RAG, RAGConfig
from latent_rag.__main__ import DOCUMENTS, write

import lm_latent_eval
from lm_latent_eval.extend import UNKNOWN, Case, laws


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
