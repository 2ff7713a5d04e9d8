r"""A stack of LSTM layers as a causal language model of transformers.

    h_t, c_t = LSTM(E[x_t], h_{t-1}, c_{t-1})
    p(x_{t+1} | x_1..x_t) = softmax(O (P h_t + b) + d)

E is the table of embeddings, P projects a state to their width and O is E itself where
``tie_word_embeddings``. Dropout falls on the embeddings, between layers and on the
last states.

LeBrun et al. (2022), section 3.3, take the baseline of Melis et al. (2020) with 2
layers, states of 2048 and embeddings of 1024, of "approximately 110M" parameters.
With E = O and the projection that is 112.4M for the 50,257 tokens of GPT-2, and 119.5M
for the 57,256 that they name; without the tie 163.8M, without the projection (the
last layer as wide as the embeddings) 89.2M. Departures from that baseline: the plain
LSTM of torch (theirs couples the input gate to the forget gate), and no recurrent
dropout.

This file imports nothing of its package: ``save_pretrained`` puts a copy of it beside
the weights, so that ``trust_remote_code=True`` loads them anywhere.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutputWithPast


class LSTMForCausalLMConfig(PreTrainedConfig):
    """Sizes of an :class:`LSTMForCausalLM`.

    Attributes:
        vocab_size: Tokens.
        embedding_dim: Width of E.
        hidden_size: Width of a state.
        num_layers: How many LSTM layers.
        dropout: Probability that an activation is dropped in training.
        initializer_range: Standard deviation of the first embeddings and projection.
    """

    model_type = "lstm_causal"

    def __init__(
        self,
        vocab_size: int = 50_257,
        embedding_dim: int = 1024,
        hidden_size: int = 2048,
        num_layers: int = 2,
        dropout: float = 0.1,
        initializer_range: float = 0.02,
        tie_word_embeddings: bool = True,
        **others: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.embedding_dim = embedding_dim
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.dropout = dropout
        self.initializer_range = initializer_range
        super().__init__(**{"tie_word_embeddings": tie_word_embeddings, **others})


class LSTMState:
    """States after the tokens read so far, where a Transformer has keys and values."""

    def __init__(self, hidden: Tensor, cell: Tensor, num_tokens: int) -> None:
        """Keep (num_layers, N, hidden_size) states of N sequences."""
        self.hidden, self.cell, self.num_tokens = hidden, cell, num_tokens

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return how many tokens were read."""
        return self.num_tokens

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some of the sequences, in that order."""
        self.hidden, self.cell = self.hidden[:, indices], self.cell[:, indices]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Follow the sequences of a beam search."""
        self.batch_select_indices(beam_idx)


class LSTMForCausalLM(PreTrainedModel, GenerationMixin):
    """p(x) of a stack of LSTM layers, with a softmax over all tokens."""

    config_class = LSTMForCausalLMConfig
    config: LSTMForCausalLMConfig
    base_model_prefix = ""
    _is_stateful = True
    _tied_weights_keys = {"output.weight": "embeddings.weight"}  # noqa: RUF012

    def __init__(self, config: LSTMForCausalLMConfig) -> None:
        """Build the layers, with random weights."""
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.embedding_dim)
        self.lstm = nn.LSTM(
            config.embedding_dim,
            config.hidden_size,
            config.num_layers,
            batch_first=True,
            dropout=config.dropout if config.num_layers > 1 else 0.0,
        )
        self.projection = nn.Linear(config.hidden_size, config.embedding_dim)
        self.output = nn.Linear(config.embedding_dim, config.vocab_size)
        self.dropout = nn.Dropout(config.dropout)
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Embedding:
        """Return E."""
        return self.embeddings

    def get_output_embeddings(self) -> nn.Linear:
        """Return O."""
        return self.output

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        past_key_values: LSTMState | None = None,
        use_cache: bool | None = None,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        """Predict the token after each one.

        Args:
            input_ids: (N, T).
            attention_mask: (N, at least T), of which the last T count; 0 is a token
                that leaves the state as it is. None reads all.
            labels: ``input_ids``, with -100 where no loss is wanted; (N, T).
            past_key_values: The state after what came before.
            use_cache: Whether to return the state after these tokens.
            others: ``num_items_in_batch``, which the loss is divided by; what else
                ``generate`` hands over has no meaning here.
        """
        mask = (
            None if attention_mask is None else attention_mask[:, -len(input_ids[0]) :]
        )
        state, seen = None, 0
        if past_key_values is not None:
            state = past_key_values.hidden, past_key_values.cell
            seen = past_key_values.num_tokens
        embedded = self.dropout(self.embeddings(input_ids))
        read, (hidden, cell) = self._read(embedded, mask, state)
        logits = self.output(self.projection(self.dropout(read)))
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits, labels, vocab_size=self.config.vocab_size, **others
            )
        after: Any = LSTMState(hidden, cell, seen + input_ids.shape[1])
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=after if use_cache else None
        )

    def _read(
        self, embedded: Tensor, mask: Tensor | None, state: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Run over (N, T, E): the states (N, T, H), and those after the last token."""
        if mask is None or bool(mask.all()):
            return self.lstm(embedded, state)  # type: ignore[no-any-return]
        # Tokens that count move to the front, the others are no part of a packed row.
        order = mask.int().sort(stable=True, descending=True).indices[:, :, None]
        packed = pack_padded_sequence(
            embedded.take_along_dim(order, 1),
            mask.sum(1).cpu(),
            batch_first=True,
            enforce_sorted=False,
        )
        states, last = self.lstm(packed, state)
        found, _ = pad_packed_sequence(
            states, batch_first=True, total_length=embedded.shape[1]
        )
        return found.take_along_dim(order.argsort(1), 1), last

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """``generate`` makes no key-value cache: the first pass returns the state."""
        return False


AutoConfig.register(LSTMForCausalLMConfig.model_type, LSTMForCausalLMConfig)
AutoModelForCausalLM.register(LSTMForCausalLMConfig, LSTMForCausalLM)
LSTMForCausalLMConfig.register_for_auto_class()  # type: ignore[no-untyped-call]
LSTMForCausalLM.register_for_auto_class("AutoModelForCausalLM")  # type: ignore[no-untyped-call]
