"""Cosine matrices of short sequences, and their batch mean without a matrix a sample in memory.

Stage 1, one program per (lead, share of the batch, tile of 32 × 32 or smaller): for each sample of its
share, over chunks of d,
    G = X_m X_nᵀ,   |x_i|² and |x_j|² from the same chunks,   C = G / (|x_i| |x_j|), clamped to [-1, 1]
and either stores C or adds it up. Stage 2 adds the shares in a fixed order: no atomics, the same bits
from run to run and, since the number of shares depends on the batch alone, from card to card.
"""

import triton
import triton.language as tl

__all__ = ["gram_kernel", "sum_shares_kernel"]


@triton.jit
def _chunk(p_x, s_t, o_t, o_d, n_pos, D: tl.constexpr, BD: tl.constexpr):
    p_block = p_x + o_t.to(tl.int64)[:, None] * s_t + o_d[None, :]
    if D % BD == 0:
        return tl.load(p_block, mask=(o_t < n_pos)[:, None], other=0.0)
    else:
        return tl.load(p_block, mask=(o_t < n_pos)[:, None] & (o_d < D)[None, :], other=0.0)


@triton.jit
def inverse_norm(b_squared, FLOOR_SQUARED: tl.constexpr):
    """1/√x, correctly rounded, 0 for vectors that count as zero; NaN stays NaN."""
    is_zero = b_squared < FLOOR_SQUARED
    return tl.where(is_zero, 0.0, tl.div_rn(1.0, tl.sqrt_rn(tl.where(is_zero, 1.0, b_squared))))


@triton.jit
def clamp_to_one(b_x):
    """To [-1, 1]; comparisons, since NaN must pass (minimum and maximum may drop it)."""
    b_x = tl.where(b_x > 1.0, 1.0, b_x)
    return tl.where(b_x < -1.0, -1.0, b_x)


@triton.jit
def gram_kernel(
    p_h, p_out, factor, n_batch, n_pos, n_shares, s_l, s_b, s_t,
    D: tl.constexpr, BM: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
    FLOOR_SQUARED: tl.constexpr, PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """`p_out [lead, n_shares, pos, pos]`: the share's sum of C, times `factor`."""
    i_tile = tl.program_id(0) % ((BT // BM) * (BT // BM))
    i_rest = tl.program_id(0) // ((BT // BM) * (BT // BM))
    i_share = i_rest % n_shares
    i_l = i_rest // n_shares
    o_m = (i_tile // (BT // BM)) * BM + tl.arange(0, BM)
    o_n = (i_tile % (BT // BM)) * BM + tl.arange(0, BM)
    p_h += i_l.to(tl.int64) * s_l
    b_sum = tl.zeros([BM, BM], tl.float32)
    for i_turn in range((n_batch - i_share + n_shares - 1) // n_shares):
        p_x = p_h + (i_share.to(tl.int64) + i_turn * n_shares) * s_b
        b_g = tl.zeros([BM, BM], tl.float32)
        b_m2 = tl.zeros([BM], tl.float32)
        b_n2 = tl.zeros([BM], tl.float32)
        for i_d in range(0, D, BD):
            o_d = i_d + tl.arange(0, BD)
            b_m = _chunk(p_x, s_t, o_m, o_d, n_pos, D, BD)
            b_n = _chunk(p_x, s_t, o_n, o_d, n_pos, D, BD)
            b_m_wide = b_m.to(tl.float32)
            b_n_wide = b_n.to(tl.float32)
            b_m2 += tl.sum(b_m_wide * b_m_wide, axis=1)
            b_n2 += tl.sum(b_n_wide * b_n_wide, axis=1)
            if WIDEN:
                b_g = tl.dot(b_m_wide, tl.trans(b_n_wide), b_g, input_precision=PRECISION)
            else:
                b_g = tl.dot(b_m, tl.trans(b_n), b_g, input_precision=PRECISION)
        b_c = b_g * inverse_norm(b_m2, FLOOR_SQUARED)[:, None] * inverse_norm(b_n2, FLOOR_SQUARED)[None, :]
        b_sum += clamp_to_one(b_c)
    p_out += i_rest.to(tl.int64) * n_pos * n_pos
    tl.store(
        p_out + o_m[:, None] * n_pos + o_n[None, :],
        b_sum * factor,
        mask=(o_m < n_pos)[:, None] & (o_n < n_pos)[None, :],
    )


@triton.jit
def sum_shares_kernel(p_shares, p_out, n_shares, n_values, BS: tl.constexpr, BN: tl.constexpr):
    """`[lead, n_shares, n_values]` -> `[lead, n_values]`, in a fixed order, clamped to [-1, 1]."""
    i_blocks = tl.cdiv(n_values, BN)
    i_l = (tl.program_id(0) // i_blocks).to(tl.int64)
    o_n = (tl.program_id(0) % i_blocks) * BN + tl.arange(0, BN)
    p_shares += i_l * n_shares * n_values
    b_sum = tl.zeros([BS, BN], tl.float32)
    for i_s in range(0, n_shares, BS):
        o_s = i_s + tl.arange(0, BS)
        b_sum += tl.load(
            p_shares + o_s[:, None] * n_values + o_n[None, :],
            mask=(o_s < n_shares)[:, None] & (o_n < n_values)[None, :],
            other=0.0,
        )
    tl.store(p_out + i_l * n_values + o_n, clamp_to_one(tl.sum(b_sum, axis=0)), mask=o_n < n_values)
