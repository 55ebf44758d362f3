"""The references hold against PyTorch's own functions, and the CPU's kernels against them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from paceline_runtime.kernels import reference
from paceline_runtime.kernels.cpu.attention import MAX_PADDING, groups
from paceline_runtime.kernels.interface import AttentionOptions, KVCache, select
from paceline_runtime.kernels.plan import AttentionPlan, AttentionShape, plan_attention

BLOCK, HEADS, KV_HEADS, DIM = 8, 6, 2, 16


def step(new: list[int], before: list[int]) -> tuple[AttentionPlan, torch.Tensor]:
    """A plan, and the slots of all tokens of all sequences."""
    query_lens = np.array(new, dtype=np.int32)
    seq_lens = query_lens + np.array(before, dtype=np.int32)
    needed = -(-seq_lens // BLOCK)
    blocks = torch.randperm(int(needed.sum()), generator=torch.Generator().manual_seed(1)).int()
    table = torch.zeros(len(new), int(needed.max()), dtype=torch.int32)
    for row, (end, count) in enumerate(zip(np.cumsum(needed), needed, strict=True)):
        table[row, :count] = blocks[end - count : end]
    where = [torch.arange(int(n)) for n in seq_lens]
    slots = torch.cat([table[row, at // BLOCK].long() * BLOCK + at % BLOCK for row, at in enumerate(where)])
    lens, starts = torch.from_numpy(seq_lens), torch.from_numpy(np.concatenate(([0], np.cumsum(query_lens))))
    plan = plan_attention(
        table,
        lens,
        starts.int(),
        host_seq_lens=seq_lens,
        host_query_lens=query_lens,
        shape=AttentionShape(HEADS, KV_HEADS, DIM, 4),
        processors=4,
        to_device=torch.from_numpy,
    )
    return plan, slots


def filled(slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, KVCache]:
    torch.manual_seed(2)
    key, value = torch.randn(2, len(slots), KV_HEADS, DIM)
    shape = (int(slots.max()) // BLOCK + 1, BLOCK, KV_HEADS, DIM)
    cache = KVCache(torch.zeros(shape), torch.zeros(shape))
    reference.write_kv(key, value, cache, slots)
    return key, value, cache


def attend(plan: AttentionPlan, cache: KVCache, query: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
    out = torch.empty_like(query)
    reference.decode_attention(query, cache, plan, options, out)
    reference.varlen_attention(query, cache, plan, options, out)
    return out


def test_attention_is_pytorchs_over_the_tokens_of_each_sequence() -> None:
    new, before = [1, 9, 1, 8, 0], [16, 0, 0, 3, 5]
    plan, slots = step(new, before)
    key, value, cache = filled(slots)
    query = torch.randn(sum(new), HEADS, DIM)
    got = attend(plan, cache, query, AttentionOptions.plain(DIM))
    first, token = 0, 0
    for count, known in zip(new, before, strict=True):
        mine = slice(token, token + known + count)
        wanted = F.scaled_dot_product_attention(
            query[first : first + count].transpose(0, 1),
            key[mine].transpose(0, 1),
            value[mine].transpose(0, 1),
            attn_mask=torch.arange(known + count) <= torch.arange(known, known + count).unsqueeze(1),
            enable_gqa=True,
        )
        torch.testing.assert_close(got[first : first + count], wanted.transpose(0, 1))
        first, token = first + count, token + known + count


@pytest.mark.parametrize("window", [1, 3, 100])
def test_a_window_shows_a_token_itself_and_those_just_before_it(window: int) -> None:
    plan, slots = step([9], [4])
    key, value, cache = filled(slots)
    query = torch.randn(9, HEADS, DIM)
    position, token = torch.arange(4, 13).unsqueeze(1), torch.arange(13)
    mask = (token <= position) & (position - token < window)
    wanted = F.scaled_dot_product_attention(
        query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1), attn_mask=mask, enable_gqa=True
    )
    got = attend(plan, cache, query, AttentionOptions(DIM**-0.5, window=window))
    torch.testing.assert_close(got, wanted.transpose(0, 1))


def test_a_soft_cap_is_on_scaled_scores() -> None:
    plan, slots = step([1], [30])
    key, value, cache = filled(slots)
    query = 100 * torch.randn(1, HEADS, DIM)
    got = attend(plan, cache, query, AttentionOptions(DIM**-0.5, soft_cap=2.0))
    scores = torch.einsum("hd,shd->hs", query[0], key.repeat_interleave(HEADS // KV_HEADS, 1)) * DIM**-0.5
    weights = torch.softmax(2.0 * torch.tanh(scores / 2.0), dim=-1)
    wanted = torch.einsum("hs,shd->hd", weights, value.repeat_interleave(HEADS // KV_HEADS, 1))
    torch.testing.assert_close(got[0], wanted)


def test_rotation_turns_pairs_half_a_head_apart() -> None:
    heads, positions = torch.randn(3, 2, 8), torch.tensor([0, 5, 2])
    angles = torch.outer(torch.arange(6.0), torch.tensor([1.0, 0.5, 0.1, 0.01]))
    turned = torch.complex(heads[..., :4], heads[..., 4:]) * torch.polar(torch.ones(6, 4), angles)[positions, None]
    reference.rotate(heads, positions, angles.cos(), angles.sin())
    torch.testing.assert_close(heads, torch.cat((turned.real, turned.imag), -1))


def test_the_gate_is_the_first_half() -> None:
    gate, up = torch.randn(2, 5, 12)
    torch.testing.assert_close(reference.silu_and_mul(torch.cat((gate, up), 1)), F.silu(gate) * up)


def test_the_sum_that_a_norm_is_taken_of_stays_in_the_residual() -> None:
    x, residual, weight = torch.randn(3, 4, 32)
    before = residual.clone()
    got = reference.add_rms_norm(x, residual, weight[0], 1e-6)
    torch.testing.assert_close(residual, before + x)
    torch.testing.assert_close(got, F.rms_norm(before + x, (32,), weight[0], 1e-6))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_scales_set_on_writing_keep_the_largest_number_of_a_head_exactly(dtype: torch.dtype) -> None:
    kept = torch.zeros(2, BLOCK, KV_HEADS, DIM, dtype=torch.uint8).view(dtype)
    cache = KVCache(kept, kept.clone(), *torch.zeros(2, 2, BLOCK, KV_HEADS))
    key, value = torch.randn(2, 3, KV_HEADS, DIM) * 50
    reference.write_kv(key, value, cache, torch.tensor([9, -1, 0]))
    assert cache.key_scale is not None
    got = cache.key.float() * cache.key_scale.unsqueeze(-1)
    for token, (block, offset) in ((0, (1, 1)), (2, (0, 0))):
        largest = key[token].abs().argmax(-1, keepdim=True)
        torch.testing.assert_close(got[block, offset].gather(1, largest), key[token].gather(1, largest))
        # Half a step: 1/254 of the largest number in int8; 1/16 of the number itself in e4m3.
        step = key[token].abs().amax(-1, keepdim=True) / 254 if dtype == torch.int8 else key[token].abs() / 16
        smallest = key[token].abs().amax(-1, keepdim=True) / 448 * 2**-10
        assert ((got[block, offset] - key[token]).abs() <= torch.maximum(step, smallest) * 1.001).all()
    assert int((cache.key_scale != 0).sum()) == 2 * KV_HEADS


def test_a_cache_says_what_does_not_fit_together() -> None:
    plain = torch.zeros(2, BLOCK, KV_HEADS, DIM)
    small = plain.to(torch.int8)
    with pytest.raises(ValueError, match="has no scales"):
        KVCache(plain, plain, torch.ones(KV_HEADS), torch.ones(KV_HEADS))
    with pytest.raises(ValueError, match="needs contiguous float32 scales"):
        KVCache(small, small)
    with pytest.raises(ValueError, match=r"have to be \(2,\) or \(2, 8, 2\)"):
        KVCache(small, small, torch.ones(3), torch.ones(3))
    with pytest.raises(ValueError, match="one kind"):
        KVCache(small, small, torch.ones(KV_HEADS), torch.ones(2, BLOCK, KV_HEADS))


def test_sampling_keeps_the_first_tokens_and_draws_from_the_likeliest_down() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().repeat(5, 1) - torch.tensor(0.4).log()
    top_k, one, none = torch.tensor([4, 2, 4, 4, 1]), torch.ones(5), torch.zeros(5)
    top_p = torch.tensor([1.0, 1.0, 0.65, 1.0, 1.0])
    min_p = torch.tensor([0.0, 0.0, 0.0, 0.6, 0.0])
    low = reference.sample(logits, top_k, top_p, min_p, none.double())
    high = reference.sample(logits, top_k, top_p, min_p, one.double() - 1e-9)
    assert low.tolist() == [0, 0, 0, 0, 0]
    assert high.tolist() == [3, 1, 1, 1, 0]


@pytest.mark.parametrize("options", [AttentionOptions(0.3), AttentionOptions(0.3, window=5, soft_cap=3.0)])
def test_the_kernels_of_a_cpu_compute_what_the_references_do(options: AttentionOptions) -> None:
    new, before = [1, 9, 1, 8, 0, 1, 1], [16, 0, 0, 3, 5, -1, 61]
    plan, slots = step(new, before)
    _, _, cache = filled(slots)
    query = torch.randn(sum(new), HEADS, DIM)
    out = torch.full_like(query, torch.nan)
    kernels = select(torch.device("cpu"))
    kernels.decode_attention(query, cache, plan, options, out)
    kernels.varlen_attention(query, cache, plan, options, out)
    torch.testing.assert_close(out, attend(plan, cache, query, options))


@pytest.mark.parametrize("slots", [[9, 0, 15], [9, -1, 3]])
def test_a_cpu_writes_what_the_reference_writes(slots: list[int]) -> None:
    key, value = torch.randn(2, 3, KV_HEADS, DIM)
    ours, theirs = (KVCache(*torch.zeros(2, 2, BLOCK, KV_HEADS, DIM)) for _ in range(2))
    select(torch.device("cpu")).write_kv(key, value, ours, torch.tensor(slots))
    reference.write_kv(key, value, theirs, torch.tensor(slots))
    assert torch.equal(ours.key, theirs.key)
    assert torch.equal(ours.value, theirs.value)
    assert int(ours.key.count_nonzero()) == sum(slot >= 0 for slot in slots) * KV_HEADS * DIM


def test_decodes_that_share_a_product_are_of_similar_length() -> None:
    lengths = np.array([100, 3, 0, 90, 4, 1000], dtype=np.int32)
    cut = groups(lengths)
    assert sorted(index for group in cut for index in group.tolist()) == [0, 1, 3, 4, 5]
    for group in cut:
        assert lengths[group].max() * len(group) <= MAX_PADDING * lengths[group].sum()


def test_a_device_without_kernels_is_refused() -> None:
    with pytest.raises(ValueError, match="none for mps"):
        select(torch.device("mps"))
