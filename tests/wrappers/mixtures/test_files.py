"""Files of mixtures: what they may say, and how what they may not is told."""

import json

import pytest

from lm_latent_eval.wrappers.mixtures import files

DOCUMENTS = "[{context: q, documents: [a, {text: b, weight: 3}]}]"


@pytest.fixture
def read(tmp_path):
    def read(content, **more):
        path = tmp_path / "mixture.yaml"
        path.write_text(content)
        return files.read(path, **more)

    return read


WRONG = {
    "": "the file is None: expected prompts",
    "draws: 3": "nothing is mixed: expected one of prompts",
    "promts: ['{context}']": "the file has 'promts'.*did you mean prompts",
    "prompts: a": "prompts is 'a': expected a list",
    "prompts: []": "prompt: there is none",
    "prompts: [a]": r"prompts\[0\].text has {context} 0 times: expected once",
    "prompts: ['{context}', '{context}']": "prompt: '{context}' is there twice",
    "prompts: [{text: '{context}', weight: 0}]": r"prompts\[0\].weight is 0: expected",
    "prompts: [{text: '{context}', weight: .inf}]": r"weight is inf: expected a pos",
    "prompts: [{txt: '{context}'}]": r"prompts\[0\] has 'txt'.*did you mean text",
    "permutations: some": "permutations is 'some': expected all or cyclic",
    "few_shot: {number: 3}": "the file has 'few_shot': expected prompts, permu",
    "documents: {retrieved: [{context: a}]}": r"retrieved\[0\].documents is None",
    "documents: {retrieved: [{context: a, documents: [1]}]}": r"documents\[0\] is 1",
    "documents: {retrieved: 'a.jsonl'}": "retrieved is 'a.jsonl': expected a list",
    "documents: {template: a}": "expected either retrieved or a callable",
    "documents: {callable: a.b:c}": "names code .a.b:c.*trust_retriever=True in --mod",
    "documents: {callable: a.b}": "callable is 'a.b': expected package.module:function",
    "models: [{args: {trust_remote_code: true}}]": "args has 'trust_remote_code'",
    "models: [{args: {model: 'a:B'}}]": "args has 'model': expected pretrained",
    "models: [{args: {estimator: 'a:B'}}]": "estimator names code",
    "models: [{args: {pretrained: [a]}}]": "pretrained is .'a'.: expected text",
    "permutations: all\ndraws: 0": "draws is 0: expected a whole number of 1",
    "a: !!python/object/apply:os.getcwd []": "cannot be read .could not determine",
    "[" * 5000: "cannot be read .maximum recursion depth",
}


@pytest.mark.parametrize("content", WRONG)
def test_what_a_file_may_not_say_is_told_in_one_line(read, content):
    with pytest.raises(ValueError, match=WRONG[content]) as told:
        read(content).of_models  # noqa: B018
    assert "mixture.yaml" in str(told.value)
    assert "\n" not in str(told.value)


def test_json_is_yaml(read):
    content = {"prompts": ["{context}", {"text": "a {context}", "weight": 2}]}
    other = "prompts:\n- '{context}'\n- text: 'a {context}'\n  weight: 2\n"
    assert read(json.dumps(content)).digest == read(other).digest


def test_documents_are_those_of_the_context(read):
    mixture = read(f"documents: {{retrieved: {DOCUMENTS}}}")
    [factor] = mixture.factors
    listed = factor.variants(" q\n")
    assert [v.rewrite("q", " a")[0] for v in listed] == ["a\n\nq", "b\n\nq"]
    with pytest.raises(ValueError, match=r"retrieved has no entry with this context"):
        factor.variants("other")


def retrieved(context):
    return [{"text": f"about {context}"}, {"name": "none", "text": "nothing"}]


def broken(context):
    raise KeyError(context)


def odd(context):
    return [1]


def test_a_function_retrieves_with_consent(read):
    of_function = "documents: {{callable: '{}'}}".format
    said = of_function(f"{__name__}:retrieved")
    with pytest.raises(ValueError, match="trust_retriever"):
        read(said)
    [factor] = read(said, trust_retriever=True).factors
    assert [v.name for v in factor.variants("q")] == ["about q", "none"]
    for name, why in (
        (f"{__name__}:broken", "broken.*ends in KeyError"),
        (f"{__name__}:odd", "document 0 of .*odd is 1: expected name, text, weight"),
        ("json:nothing", "json:nothing is not there"),
    ):
        with pytest.raises(ValueError, match=why):
            [factor] = read(of_function(name), trust_retriever=True).factors
            factor.variants("q")
