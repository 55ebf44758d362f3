"""What a model is made of, from its own `config.json`: layers, heads, experts, and the parameters they have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GATED_MATRICES = 3
"""Gate, up and down projection of a feed-forward block, as all families here have it."""


class UnknownModel(ValueError):
    """A config that cannot be counted; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): one compressed vector is cached for all
    heads, beside a rotary part that they share.
    """

    kv_lora_rank: int
    rope_head_dim: int
    nope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None

    @property
    def cached(self) -> int:
        """Values cached for a token in one layer."""
        return self.kv_lora_rank + self.rope_head_dim


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts.

    Attributes:
        count, active: experts of a layer, and those a token goes through.
        layers: layers that have them.
        parameters: of one expert.
    """

    count: int
    active: int
    layers: int
    parameters: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Counts only; no weights are read.

    Attributes:
        window: tokens that a sliding layer looks back; None where all layers see everything.
        sliding_layers: how many of `num_layers` are such.
        parameters: all of them, embeddings counted once where tied.
        active_parameters: those that belong to one token's way, in the way model cards count them.
        tied: the output layer uses the table of input embeddings.
        context_length: longest context that the model was made for; None where the config does not say.
        assumed: what the config left open, in words.
    """

    family: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    parameters: int
    active_parameters: int
    tied: bool
    context_length: int | None
    latent: LatentAttention | None = None
    experts: Experts | None = None
    window: int | None = None
    sliding_layers: int = 0
    assumed: tuple[str, ...] = ()

    @property
    def worked_parameters(self) -> int:
        """Parameters that one token is multiplied with: of a table that only looks inputs up, a single row is read."""
        return self.active_parameters - (0 if self.tied else self.vocab_size * self.hidden_size)

    @property
    def cached_values(self) -> int:
        """Values cached for one token over all layers: keys and values of every KV head, or the latent vectors."""
        if self.latent is not None:
            return self.num_layers * self.latent.cached
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """Count a model from its `config.json` (the form of HF transformers).

    Raises:
        UnknownModel: a field that the count needs is missing or not a whole number.
    """
    inner = config.get("text_config")
    if isinstance(inner, Mapping):
        # A model that also sees has its language half here.
        config = {**config, **inner}
    family = str(config.get("model_type") or "llama")
    hidden, layers = _need(config, "hidden_size"), _need(config, "num_hidden_layers")
    heads, vocab = _need(config, "num_attention_heads"), _need(config, "vocab_size")
    kv_heads = _number(config, "num_key_value_heads") or heads
    head_dim = _number(config, "head_dim") or hidden // heads
    latent = _latent(config)
    experts = _experts(config, family, hidden, layers)
    assumed = [] if family in _FAMILIES else [f"the family {family} is counted like Llama"]
    tied = config.get("tie_word_embeddings")
    if tied is None:
        tied = family.startswith("gemma")
    per_layer = _attention(config, family, hidden, heads, kv_heads, head_dim, latent)
    per_layer += (4 if family.startswith(("gemma2", "gemma3")) else 2) * hidden
    dense_layers = layers - (experts.layers if experts else 0)
    dense = dense_layers * GATED_MATRICES * hidden * _need(config, "intermediate_size") if dense_layers else 0
    shared = _beside_experts(config, family, hidden, experts)
    spread = experts.layers * experts.count * experts.parameters if experts else 0
    at_work = experts.layers * experts.active * experts.parameters if experts else 0
    rest = layers * per_layer + dense + shared + vocab * hidden * (1 if tied else 2) + hidden
    window, sliding = _window(config, family, layers)
    return ModelShape(
        family=family,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=vocab,
        parameters=rest + spread,
        active_parameters=rest + at_work,
        tied=bool(tied),
        context_length=_number(config, "max_position_embeddings"),
        latent=latent,
        experts=experts,
        window=window,
        sliding_layers=sliding,
        assumed=tuple(assumed),
    )


_FAMILIES = frozenset(
    [
        "deepseek_v2",
        "deepseek_v3",
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "gpt_oss",
        "llama",
        "mistral",
        "mixtral",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "smollm3",
    ]
)


def _need(config: Mapping[str, Any], name: str) -> int:
    value = _number(config, name)
    if value is None:
        raise UnknownModel(f"the config has no `{name}`: give the config.json of a decoder-only transformer")
    return value


def _number(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UnknownModel(f"`{name}` is {value!r}: a whole number is expected")
    return value


def _latent(config: Mapping[str, Any]) -> LatentAttention | None:
    rank = _number(config, "kv_lora_rank")
    if rank is None:
        return None
    return LatentAttention(
        kv_lora_rank=rank,
        rope_head_dim=_need(config, "qk_rope_head_dim"),
        nope_head_dim=_need(config, "qk_nope_head_dim"),
        v_head_dim=_need(config, "v_head_dim"),
        q_lora_rank=_number(config, "q_lora_rank"),
    )


def _attention(
    config: Mapping[str, Any],
    family: str,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    latent: LatentAttention | None,
) -> int:
    """Parameters of one layer's attention."""
    if latent is not None:
        query = heads * (latent.nope_head_dim + latent.rope_head_dim)
        rank = latent.q_lora_rank
        queries = hidden * query if rank is None else rank * (hidden + 1 + query)
        compress = hidden * latent.cached + latent.kv_lora_rank
        expand = latent.kv_lora_rank * heads * (latent.nope_head_dim + latent.v_head_dim)
        return queries + compress + expand + heads * latent.v_head_dim * hidden
    queries, keys = heads * head_dim, kv_heads * head_dim
    total = hidden * (queries + 2 * keys) + queries * hidden
    biased = bool(config.get("attention_bias")) or family == "gpt_oss"
    if biased or family in ("qwen2", "qwen2_moe"):
        total += queries + 2 * keys
    if biased:
        total += hidden
    if family in ("qwen3", "qwen3_moe", "gemma3", "gemma3_text"):
        total += 2 * head_dim  # norms of queries and keys
    if family == "gpt_oss":
        total += heads  # a sink for each head
    return total


def _experts(config: Mapping[str, Any], family: str, hidden: int, layers: int) -> Experts | None:
    count = next(
        (n for key in ("num_local_experts", "n_routed_experts", "num_experts") if (n := _number(config, key))), None
    )
    if count is None:
        return None
    active = _number(config, "num_experts_per_tok") or _need(config, "experts_per_token")
    inner = _number(config, "moe_intermediate_size") or _need(config, "intermediate_size")
    if "decoder_sparse_step" in config:
        step = _number(config, "decoder_sparse_step") or 1
        without = set(config.get("mlp_only_layers") or ())
        with_experts = sum(1 for layer in range(layers) if layer not in without and (layer + 1) % step == 0)
    else:
        with_experts = layers - (_number(config, "first_k_dense_replace") or 0)
    parameters = GATED_MATRICES * hidden * inner
    if family == "gpt_oss":
        parameters += 2 * inner + hidden  # biases
    return Experts(count, active, with_experts, parameters)


def _beside_experts(config: Mapping[str, Any], family: str, hidden: int, experts: Experts | None) -> int:
    """Parameters that every token passes in layers with experts: the router and shared experts."""
    if experts is None:
        return 0
    router = hidden * experts.count
    if family in ("gpt_oss", "deepseek_v3"):
        router += experts.count  # a bias for each
    shared = (
        (_number(config, "n_shared_experts") or 0)
        * GATED_MATRICES
        * hidden
        * (_number(config, "moe_intermediate_size") or 0)
    )
    inner = _number(config, "shared_expert_intermediate_size")
    if inner:
        shared += GATED_MATRICES * hidden * inner + hidden  # and its gate
    return experts.layers * (router + shared)


def _window(config: Mapping[str, Any], family: str, layers: int) -> tuple[int | None, int]:
    """Window of sliding layers and how many there are."""
    window = _number(config, "sliding_window")
    if not window or config.get("use_sliding_window") is False:
        return None, 0
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        sliding = sum(kind == "sliding_attention" for kind in kinds)
    elif (pattern := _number(config, "sliding_window_pattern")) is not None:
        sliding = layers - layers // pattern  # every `pattern`-th layer sees everything
    elif family in ("gemma2", "gpt_oss"):
        sliding = (layers + 1) // 2
    elif family.startswith("qwen"):
        sliding = max(0, layers - (_number(config, "max_window_layers") or layers))
    else:
        sliding = layers
    return (window, sliding) if sliding else (None, 0)
