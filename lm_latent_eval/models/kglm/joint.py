"""KGLM: text and a walk through a knowledge graph, p(x, z) and q(z | x).

    p(x, z) = prod_t p(z_t | z_<t, x_<t) p(x_t | z_t, x_<t),  z_t = (mention type, node)

Symbols: h^t, h^h, h^r -> ``text``, ``head``, ``relation`` parts of the hidden state;
E -> ``entity_embeddings``; candidates for a parent -> the nodes of the last ``cutoff``
tokens. The factor of z_t is in ``latents.py``, the factor of x_t in ``network.py``.
Proposals: a trunk like that of p, trained to predict z_t from the text before x_t
(``nonpeeking``), with x_t (``peeking``) or with all that follows (``smoothing``, which
is also twisted towards nodes whose names stand in the text: ``AliasMatching``); or p's
own conditional, twisted by what p will pay for the text ahead (``adapted``:
``search.py``), for which nothing is trained.
Departures: parents and relations are summed out; newly trained models exclude what
cannot happen (``only_possible``) and are normalised; plain dropout on embeddings.
Source: Logan et al. (2019), sections 3 and 4; Logan et al. (2020), whose proposals are
the first two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor, nn

from lm_latent_eval.devices import fetched, sent, widened
from lm_latent_eval.inference.particles import not_negligible
from lm_latent_eval.inference.ragged import AT_ONCE
from lm_latent_eval.latent import Uniforms
from lm_latent_eval.models.kglm.configuration import KGLMConfig
from lm_latent_eval.models.kglm.encoding import Encoded, KGLMState
from lm_latent_eval.models.kglm.graph import KnowledgeGraph
from lm_latent_eval.models.kglm.latents import NextStep, Rows, Walks
from lm_latent_eval.models.kglm.network import AliasMemo, Trunk, Words, log_add
from lm_latent_eval.models.kglm.steps import log_p_of, log_prob_walks, node_probs
from lm_latent_eval.models.pretrained import TrainedModel
from lm_latent_eval.text.batch import TokenBatch


class GenerativeModel(nn.Module):
    """p(x, z): the trunk's walk and the words that it utters."""

    def __init__(self, config: KGLMConfig) -> None:
        super().__init__()
        self.trunk = Trunk(config)
        self.words = Words(config, self.trunk.token_embeddings)


class KGLMJoint(TrainedModel):
    """p(x, z), and the networks of trained proposals."""

    config_class = KGLMConfig
    base_model_prefix = "kglm"
    main_input_name = "inputs"
    config: KGLMConfig

    def __init__(self, config: KGLMConfig, graph: KnowledgeGraph | None = None) -> None:
        """Build p and the trained q's; ``graph`` comes from the checkpoint if None."""
        super().__init__(config)
        self.generative = GenerativeModel(config)
        self.proposals = nn.ModuleDict(
            {
                name: Trunk(config, both_ways=name == "smoothing")
                for name in config.proposals
            }
        )
        self.graph = graph
        self._alias_keys: AliasMemo | None = None
        self.post_init()  # type: ignore[no-untyped-call]

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise one module of a new model."""
        super()._init_weights(module)
        if isinstance(module, Trunk) and hasattr(module, "new_weight"):
            nn.init.uniform_(module.new_weight, -0.1, 0.1)
        if isinstance(module, Words) and hasattr(module, "weight"):
            nn.init.uniform_(module.weight, -0.1, 0.1)

    # -- p(x, z) --------------------------------------------------------------------

    def encode(self, batch: TokenBatch, after: KGLMState | None = None) -> Encoded:
        """Read the tokens before each target and score every decision of a walk."""
        return self._encode(
            self.generative.trunk,
            batch.inputs,
            batch,
            after,
            only_possible=self.config.only_possible,
        )

    def encode_again(
        self, encoded: Encoded, batch: TokenBatch, after: KGLMState | None
    ) -> Encoded:
        """Reuse an encoding after targets or walks change."""
        if after is None:
            return replace(encoded, batch=batch)
        return replace(encoded, batch=batch, history=after.history)

    def log_joint(self, encoded: Encoded, walks: Walks) -> Tensor:
        """Return log p(x, z_k) in nats, (B, K) float64."""
        history, walks = encoded.on_host(walks)
        log_words = self.log_words(encoded, walks).sum(-1)
        if not torch.is_grad_enabled():
            return log_words + sent(log_p_of(encoded, history, walks), log_words.device)
        length = encoded.batch.on_host[1][:, None]
        log_z = log_prob_walks(encoded.walk, history, walks, length)
        return log_words + widened(log_z).sum(-1)

    def log_words(self, encoded: Encoded, walks: Walks) -> Tensor:
        """Return log p(x_t | z_kt, x_<t) in nats, (B, K, T) float64; 0 past the end.

        Each (position, node) of a text is scored once, however many walks share it.
        """
        batch, num_nodes = encoded.batch, self.knowledge.num_nodes
        targets, _ = batch.on_host
        (node,) = fetched(walks.node)
        inside = batch.inside_on_host[:, None].expand_as(node)
        place = torch.arange(targets.numel()).view_as(targets)[:, None].expand_as(node)
        pair, shared = torch.unique(
            place[inside] * num_nodes + node[inside], return_inverse=True
        )
        log_p = self._log_words(
            encoded.text, batch, pair // num_nodes, pair % num_nodes
        )
        result = log_p.new_zeros(node.numel())
        index = inside.flatten().nonzero()[:, 0], shared
        here, which = (sent(x, result.device) for x in index)
        return result.index_copy(0, here, log_p[which]).view(node.shape)

    def _log_words(
        self, text: Tensor, batch: TokenBatch, position: Tensor, node: Tensor
    ) -> Tensor:
        """Return log p(x_t | node, x_<t) of places and nodes, nats, (U,) float64.

        Some texts at a time, and of those some nodes, since each has a row of V words.
        Places in the flattened (B * T), non-decreasing, and nodes are on the host.
        """
        targets, _ = batch.on_host
        num_texts, size = len(targets), max(1, targets.shape[1])
        at_once = max(1, AT_ONCE // (size * self.config.vocab_size))
        first = range(0, num_texts, at_once)
        counts = (position // (size * at_once)).bincount(minlength=len(first)).tolist()
        columns = zip(first, position.split(counts), node.split(counts), strict=True)
        return torch.cat(
            [
                self._log_words_at_once(
                    text[b : b + at_once],
                    targets[b : b + at_once],
                    batch.unknown_log_prob[b : b + at_once],
                    places - b * size,
                    nodes,
                    spelled=batch.spelled,
                )
                for b, places, nodes in columns
            ]
        )

    def _log_words_at_once(
        self,
        text: Tensor,
        targets: Tensor,
        unknown_log_prob: Tensor,
        position: Tensor,
        node: Tensor,
        *,
        spelled: bool,
    ) -> Tensor:
        distinct, column = torch.unique(node, return_inverse=True)
        at_once = self._nodes_at_once(targets.shape[1])
        groups, group = distinct.split(at_once), column // at_once
        # Group after group, the pairs of each in their order.
        order = group.argsort(stable=True)
        sizes = group.bincount(minlength=len(groups)).tolist()
        log_p = []
        for some, mine in zip(groups, order.split(sizes), strict=True):
            keys, aliases = self._aliases(some)
            paths = self.generative.words.log_paths(
                text,
                targets,
                unknown_log_prob,
                self._entity_vectors(some),
                keys,
                aliases,
                position[mine],
                column[mine] % at_once,
                spelled=spelled,
            )
            log_p.append(log_add(*paths))
        return torch.cat(log_p)[sent(order.argsort(), text.device)]

    def _nodes_at_once(self, num_tokens: int) -> int:
        """Return the number of nodes whose scores fit into a table."""
        words = self.generative.words
        slots = math.prod(self.knowledge.aliases.shape[1:])
        largest = max(
            self.config.vocab_size, max(num_tokens, words.copy.out_features) * slots
        )
        return max(1, AT_ONCE // largest)

    def advance(self, encoded: Encoded, walks: Walks) -> KGLMState:
        """Return the state after the encoded piece."""
        return encoded.after(walks)

    def next_token(self, encoded: Encoded, log_w: Tensor, uniforms: Uniforms) -> Tensor:
        """Predict the first token of an encoded piece from K weighted histories.

        Every choice of the walk at this token is summed over, but for nodes that
        together have a probability of ``NEGLIGIBLE`` at most.

        Pieces are of one token, whose targets are ignored, and ``log_w`` (B, K) nats.
        Returned are log-probabilities in nats, (B, num_words).
        """
        batch, samples, _ = encoded.history.shape
        log_weight = log_w.log_softmax(-1).to(encoded.text.dtype)
        rows = []
        for b in range(batch):
            here = Rows(torch.full((samples,), b), encoded.history[b])
            mass = node_probs(encoded.walk, here, log_weight[b])
            (node,) = fetched(not_negligible(mass))
            mixed = mass.new_zeros(self.config.num_words)
            for some in node.split(self._nodes_at_once(1)):
                mixed = mixed + self.generative.words.next_word(
                    encoded.text[b, 0],
                    mass[sent(some, mass.device)],
                    self._entity_vectors(some),
                    *self._aliases(some),
                )
            rows.append(mixed.log())
        return torch.stack(rows)

    # -- shared by p and q ----------------------------------------------------------

    @property
    def knowledge(self) -> KnowledgeGraph:
        """The graph; an error if the model has none yet."""
        if self.graph is None:
            raise ValueError("this KGLM has no knowledge graph: pass graph=")
        return self.graph

    def _encode(
        self,
        trunk: Trunk,
        tokens: Tensor,
        batch: TokenBatch,
        after: KGLMState | None,
        *,
        only_possible: bool,
        whole: TokenBatch | None = None,
    ) -> Encoded:
        """Read a piece, and score the steps of it or of the whole that it begins."""
        *hidden, carry = trunk.read(
            tokens, batch.length, after.carry if after else None
        )
        if whole is not None and whole is not batch:
            rest = whole.piece(tokens.shape[1], whole.targets.shape[1])
            *more, _ = trunk.read(rest.inputs, rest.length, carry)
            hidden = [torch.cat(parts, 1) for parts in zip(hidden, more, strict=True)]
        walk = NextStep(
            trunk.scores(*hidden),
            self.knowledge,
            self._introducible
            if only_possible
            else torch.ones_like(self._introducible),
            only_possible,
        )
        none = torch.zeros(len(batch.inputs), 1, self.config.cutoff, dtype=torch.long)
        history = none if after is None else after.history
        return Encoded(batch, hidden[0], walk, history, carry)

    @cached_property
    def _introducible(self) -> Tensor:
        mask = self.knowledge.node_of_entity != 0
        mask[: self.config.special_entities] = False
        return mask

    def _entity_vectors(self, node: Tensor) -> Tensor:
        table: nn.Embedding = self.generative.trunk.entity_embeddings
        vectors: Tensor = table(sent(self.knowledge.entity(node), self.device))
        return vectors

    def _aliases(self, node: Tensor) -> tuple[Tensor, Tensor]:
        """Encoded and plain alias words of nodes, (n, dim, slots) and (n, slots)."""
        if self.training or self.generative.words.copy.weight.requires_grad:
            words = self.knowledge.alias_words(node)
            return self.generative.words.encode_aliases(words), words.flatten(1)
        if self._alias_keys is None or self._alias_keys.outdated:
            self._alias_keys = AliasMemo(self.knowledge, self.generative.words)
        return self._alias_keys(node)

    def train(self, mode: bool = True) -> Self:
        """Switch between training and evaluation; drop values computed from weights.

        Encoded names are dropped by themselves where weights are replaced or changed in
        place. Only what is written through ``weight.data`` is hidden from that, as it
        is from autograd: call ``eval()`` after it.
        """
        self._forget()
        return super().train(mode)  # type: ignore[no-any-return]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move weights; drop values that were computed from them."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._forget()
        return self

    def _forget(self) -> None:
        """Drop values that were computed from weights and graph."""
        self._alias_keys = None
        self.__dict__.pop("_introducible", None)
