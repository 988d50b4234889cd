"""Attention of any length in Triton: blocks of query rows against blocks of keys, and no map.

Forward, one program per (batch, head, block of BM queries), over the key blocks that it may see:
  1. S = scale · Q Kᵀ, soft cap, bias on the intervened scores, -inf (linear: 0) where no key is allowed
  2. softmax: a running maximum, all sums rescaled where it grows; linear: the scores as they are
  3. W, · c on the intervened entries; O += W V; row mass, set masses, largest weight, Σ W log W in registers

Backward makes the blocks again. Rows: dQ, one program a block of queries. Columns: dK and dV, one program a block of
keys, from transposed scores K Qᵀ. With Δ_i = Σ_j A_ij dA_ij, known from the forward's sums:

    dA = dO Vᵀ + sign(A) G,  dS = A dA - P Δ (softmax) or c · dA (linear)

Every program owns what it writes: no atomics, the same bits from run to run. A block of keys that a set's bounds leave
out costs nothing for it. Every product has at most 32 rows, so that Hopper's `wgmma` is never used (see `tile`).

Sets come as bounds int32 `[set, 5]` (low, high, first, place of its codes, place of its list), codes int32
`[place, query or key, 1 or batch, pos]` and lists int32 `[place, 1 or batch, pos, K]`; CODED and LISTED say in bits
which sets have them. The metric sets come first, then the allowed one, then the intervened one.
"""

import triton
import triton.language as tl

from .tile import _product_of_rows, _store, _weighted_rows

__all__ = ["columns_kernel", "forward_kernel", "rows_kernel"]


@triton.jit
def _touches(p_bounds, i_s, first_i, end_i, first_j, end_j):
    """Whether the set's bounds leave it any entry in the block."""
    p_bounds += i_s * 5
    low, high, first = tl.load(p_bounds), tl.load(p_bounds + 1), tl.load(p_bounds + 2)
    return (end_i - 1 - first_j >= low) & (first_i - (end_j - 1) <= high) & (first_j < first)


@triton.jit
def _inside(
    i_s: tl.constexpr, o_i, o_j, i_b, n_pos, p_bounds, p_codes, p_lists, n_code_samples, n_list_samples,
    CODED: tl.constexpr, LISTED: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Which entries of the block are in the set; `o_i`, `o_j` (query, key) broadcast to the block."""
    p_bounds += i_s * 5
    o_offset = o_i - o_j
    b_in = (
        (o_offset >= tl.load(p_bounds)) & (o_offset <= tl.load(p_bounds + 1)) & (o_j < tl.load(p_bounds + 2))
    )
    if (CODED >> i_s) & 1:
        i_place = tl.load(p_bounds + 3).to(tl.int64) * 2
        i_sample = tl.where(n_code_samples > 1, i_b, 0)
        p_query = p_codes + (i_place * n_code_samples + i_sample) * n_pos
        p_key = p_codes + ((i_place + 1) * n_code_samples + i_sample) * n_pos
        b_query = tl.load(p_query + o_i, mask=o_i < n_pos, other=-1)
        b_key = tl.load(p_key + o_j, mask=o_j < n_pos, other=-2)
        b_in = b_in & (b_query == b_key)
    if (LISTED >> i_s) & 1:
        i_place = tl.load(p_bounds + 4).to(tl.int64)
        i_sample = tl.where(n_list_samples > 1, i_b, 0)
        p_list = p_lists + (i_place * n_list_samples + i_sample) * n_pos * K
        b_found = o_offset < -(2**30)
        for i_k in tl.static_range(K):
            b_listed = tl.load(p_list + o_i.to(tl.int64) * K + i_k, mask=o_i < n_pos, other=-1)
            b_found = b_found | (b_listed == o_j)
        b_in = b_in & b_found
    return b_in


@triton.jit
def _capped(b_s, cap):
    """cap · tanh(S / cap), and tanh itself."""
    b_tanh = 1.0 - 2.0 / (tl.exp(2.0 * b_s / cap) + 1.0)
    return b_tanh * cap, b_tanh


@triton.jit
def _scores(
    b_s, o_i, o_j, i_b, n_pos, scale, cap, bias, p_bounds, p_codes, p_lists, n_code_samples, n_list_samples,
    SOFTMAX: tl.constexpr, CAUSAL: tl.constexpr, CAP: tl.constexpr, BIAS: tl.constexpr,
    N_SETS: tl.constexpr, ALLOWED: tl.constexpr, CODED: tl.constexpr, LISTED: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """S from the raw products, and what the soft cap's slope is made of; -inf (linear: 0) where no key is allowed."""
    b_s = b_s * scale
    b_tanh = b_s
    if CAP:
        b_s, b_tanh = _capped(b_s, cap)
    if BIAS:
        b_in = _inside(
            N_SETS + ALLOWED, o_i, o_j, i_b, n_pos, p_bounds, p_codes, p_lists, n_code_samples, n_list_samples,
            CODED, LISTED, K,
        )  # fmt: skip
        b_s = tl.where(b_in, b_s + bias, b_s)
    b_seen = (o_i < n_pos) & (o_j < n_pos)
    if CAUSAL:
        b_seen = b_seen & (o_i >= o_j)
    if ALLOWED:
        b_seen = b_seen & _inside(
            N_SETS, o_i, o_j, i_b, n_pos, p_bounds, p_codes, p_lists, n_code_samples, n_list_samples,
            CODED, LISTED, K,
        )  # fmt: skip
    if SOFTMAX:
        b_s = tl.where(b_seen, b_s, float("-inf"))
    else:
        b_s = tl.where(b_seen, b_s, 0.0)
    return b_s, b_tanh, b_seen


@triton.jit
def _factor(
    o_i, o_j, i_b, n_pos, p_c, c, p_bounds, p_codes, p_lists, n_code_samples, n_list_samples,
    N_SETS: tl.constexpr, ALLOWED: tl.constexpr, C_POINTER: tl.constexpr,
    CODED: tl.constexpr, LISTED: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """c on the intervened entries, else 1."""
    if C_POINTER:
        c = tl.load(p_c)
    b_in = _inside(
        N_SETS + ALLOWED, o_i, o_j, i_b, n_pos, p_bounds, p_codes, p_lists, n_code_samples, n_list_samples,
        CODED, LISTED, K,
    )  # fmt: skip
    return tl.where(b_in, c, 1.0)


@triton.jit
def forward_kernel(
    p_q, p_k, p_v, p_bounds, p_codes, p_lists, p_c, p_o, p_row, p_set, p_most, p_at, p_entropy, p_lse,
    scale, cap, bias, c, n_pos, n_heads, n_code_samples, n_list_samples,
    s_qb, s_qt, s_qh, s_kb, s_kt, s_kh, s_vb, s_vt, s_vh, s_ob, s_ot, s_oh,
    D: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
    SOFTMAX: tl.constexpr, CAUSAL: tl.constexpr, CAP: tl.constexpr, BIAS: tl.constexpr,
    N_SETS: tl.constexpr, BS: tl.constexpr, ALLOWED: tl.constexpr, INTERVENE: tl.constexpr,
    C_POINTER: tl.constexpr, STATISTICS: tl.constexpr,
    CODED: tl.constexpr, LISTED: tl.constexpr, K: tl.constexpr,
    PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    n_blocks = tl.cdiv(n_pos, BM)
    i_m = tl.program_id(0) % n_blocks
    i_bh = tl.program_id(0) // n_blocks
    i_b = (i_bh // n_heads).to(tl.int64)
    i_h = (i_bh % n_heads).to(tl.int64)
    p_q += i_b * s_qb + i_h * s_qh
    p_k += i_b * s_kb + i_h * s_kh
    p_v += i_b * s_vb + i_h * s_vh
    first_i = i_m * BM
    o_m = first_i + tl.arange(0, BM)
    o_v = tl.arange(0, BV)
    o_s = tl.arange(0, BS)

    b_max = tl.full([BM], float("-inf"), tl.float32)
    b_sum = tl.zeros([BM], tl.float32)
    b_o = tl.zeros([BM, BV], tl.float32)
    b_row = tl.zeros([BM], tl.float32)
    b_set = tl.zeros([BM, BS], tl.float32)
    b_most = tl.zeros([BM], tl.float32)
    b_at = tl.full([BM], -1, tl.int32)
    b_log = tl.zeros([BM], tl.float32)
    start, end = 0, n_pos
    if CAUSAL:
        end = tl.minimum(end, first_i + BM)
    if ALLOWED:
        # Blocks before the window are not looked at. Its bounds may be as wide as int32.
        farthest = tl.load(p_bounds + N_SETS * 5 + 1)
        start = tl.where(farthest < first_i, (first_i - farthest) // BN * BN, 0)
        end = tl.minimum(end, tl.load(p_bounds + N_SETS * 5 + 2))
    for first_j in range(start, end, BN):
        o_n = first_j + tl.arange(0, BN)
        b_s = _product_of_rows(p_q, s_qt, o_m, p_k, s_kt, o_n, n_pos, D, BM, BN, BD, PRECISION, WIDEN)
        b_w, _, _ = _scores(
            b_s, o_m[:, None], o_n[None, :], i_b, n_pos, scale, cap, bias, p_bounds, p_codes, p_lists,
            n_code_samples, n_list_samples, SOFTMAX, CAUSAL, CAP, BIAS, N_SETS, ALLOWED, CODED, LISTED, K,
        )  # fmt: skip
        if SOFTMAX:
            b_new = tl.maximum(b_max, tl.max(b_w, axis=1))
            # A row that has met no key yet has its maximum at -inf.
            b_safe = tl.where(b_new == float("-inf"), 0.0, b_new)
            b_shrink = tl.exp(b_max - b_safe)
            b_w = tl.exp(b_w - b_safe[:, None])
            b_sum = b_sum * b_shrink + tl.sum(b_w, axis=1)
            b_o = b_o * b_shrink[:, None]
            b_set = b_set * b_shrink[:, None]
            if STATISTICS:
                b_most = b_most * b_shrink
                b_change = tl.where(b_shrink > 0, tl.log(tl.where(b_shrink > 0, b_shrink, 1.0)), 0.0)
                b_log = b_shrink * (b_log + b_change * b_row)
            b_row = b_row * b_shrink
            b_max = b_new
        if INTERVENE:  # noqa: SIM102 (known when it is compiled, the next one when it runs)
            if _touches(p_bounds, N_SETS + ALLOWED, first_i, first_i + BM, first_j, first_j + BN):
                b_w = b_w * _factor(
                    o_m[:, None], o_n[None, :], i_b, n_pos, p_c, c, p_bounds, p_codes, p_lists,
                    n_code_samples, n_list_samples, N_SETS, ALLOWED, C_POINTER, CODED, LISTED, K,
                )  # fmt: skip
        b_size = tl.abs(b_w)
        b_row += tl.sum(b_size, axis=1)
        for i_s in tl.static_range(N_SETS):
            if _touches(p_bounds, i_s, first_i, first_i + BM, first_j, first_j + BN):
                b_in = _inside(
                    i_s, o_m[:, None], o_n[None, :], i_b, n_pos, p_bounds, p_codes, p_lists,
                    n_code_samples, n_list_samples, CODED, LISTED, K,
                )  # fmt: skip
                b_mass = tl.sum(tl.where(b_in, b_size, 0.0), axis=1)
                b_set += tl.where(o_s[None, :] == i_s, b_mass[:, None], 0.0)
        if STATISTICS:
            b_here, b_place = tl.max(b_size, axis=1, return_indices=True)
            b_at = tl.where(b_here > b_most, first_j + b_place, b_at)
            b_most = tl.maximum(b_most, b_here)
            b_log += tl.sum(
                tl.where(b_size > 0, b_size * tl.log(tl.where(b_size > 0, b_size, 1.0)), 0.0), axis=1
            )
        b_o += _weighted_rows(b_w, p_v, s_vt, o_n, o_v, n_pos, DV, BV, PRECISION, WIDEN)

    o_row = i_bh.to(tl.int64) * n_pos + o_m
    b_inside = o_m < n_pos
    if STATISTICS:
        b_some = tl.where(b_row == 0, 1.0, b_row)
        b_entropy = tl.log(b_some) - b_log / b_some
        tl.store(p_entropy + o_row, tl.where(b_row == 0, float("nan"), b_entropy), mask=b_inside)
    if SOFTMAX:
        b_total = tl.where(b_sum == 0, 1.0, b_sum)
        b_o = b_o / b_total[:, None]
        b_set = b_set / b_total[:, None]
        b_row = b_row / b_total
        b_most = b_most / b_total
        tl.store(p_lse + o_row, tl.where(b_sum == 0, 0.0, b_max + tl.log(b_total)), mask=b_inside)
    if STATISTICS:
        tl.store(p_most + o_row, b_most, mask=b_inside)
        tl.store(p_at + o_row, b_at.to(tl.int64), mask=b_inside)
    tl.store(p_row + o_row, b_row, mask=b_inside)
    o_set = (i_bh.to(tl.int64) * N_SETS + o_s[None, :]) * n_pos + o_m[:, None]
    if N_SETS > 0:
        tl.store(p_set + o_set, b_set, mask=b_inside[:, None] & (o_s < N_SETS)[None, :])
    _store(p_o + i_b * s_ob + i_h * s_oh, s_ot, o_m, o_v, n_pos, b_o, DV, BV)


@triton.jit
def _gradient_of_scores(
    b_s, b_p, o_i, o_j, i_b, i_bh, n_pos, scale, cap, bias, c, p_c,
    p_bounds, p_codes, p_lists, n_code_samples, n_list_samples,
    p_lse, p_delta, p_g_row, p_g_set, p_g_entropy, p_row, p_mean_log, first_i, first_j,
    BI: tl.constexpr, BJ: tl.constexpr,
    SOFTMAX: tl.constexpr, CAUSAL: tl.constexpr, CAP: tl.constexpr, BIAS: tl.constexpr,
    N_SETS: tl.constexpr, ALLOWED: tl.constexpr, INTERVENE: tl.constexpr, C_POINTER: tl.constexpr,
    GRAD_ROW: tl.constexpr, GRAD_SET: tl.constexpr, GRAD_ENTROPY: tl.constexpr,
    CODED: tl.constexpr, LISTED: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """A and the gradient of the raw products from these and P = dO Vᵀ. Serves both orientations."""
    b_w, b_tanh, b_seen = _scores(
        b_s, o_i, o_j, i_b, n_pos, scale, cap, bias, p_bounds, p_codes, p_lists,
        n_code_samples, n_list_samples, SOFTMAX, CAUSAL, CAP, BIAS, N_SETS, ALLOWED, CODED, LISTED, K,
    )  # fmt: skip
    o_row = i_bh.to(tl.int64) * n_pos + o_i
    if SOFTMAX:
        b_w = tl.exp(b_w - tl.load(p_lse + o_row, mask=o_i < n_pos, other=0.0))
    b_a = b_w
    b_c = tl.where(b_seen, 1.0, 0.0)
    if INTERVENE:
        b_c = b_c * _factor(
            o_i, o_j, i_b, n_pos, p_c, c, p_bounds, p_codes, p_lists, n_code_samples, n_list_samples,
            N_SETS, ALLOWED, C_POINTER, CODED, LISTED, K,
        )  # fmt: skip
        b_a = b_w * b_c
    if GRAD_ROW or GRAD_SET or GRAD_ENTROPY:
        b_sign = tl.where(b_a > 0, 1.0, 0.0) - tl.where(b_a < 0, 1.0, 0.0)
        if GRAD_ROW:
            b_p += b_sign * tl.load(p_g_row + o_row, mask=o_i < n_pos, other=0.0)
        if GRAD_SET:
            for i_s in tl.static_range(N_SETS):
                if _touches(p_bounds, i_s, first_i, first_i + BI, first_j, first_j + BJ):
                    b_in = _inside(
                        i_s, o_i, o_j, i_b, n_pos, p_bounds, p_codes, p_lists, n_code_samples, n_list_samples,
                        CODED, LISTED, K,
                    )  # fmt: skip
                    o_set = (i_bh.to(tl.int64) * N_SETS + i_s) * n_pos + o_i
                    b_g = tl.load(p_g_set + o_set, mask=o_i < n_pos, other=0.0)
                    b_p += tl.where(b_in, b_sign * b_g, 0.0)
        if GRAD_ENTROPY:
            b_g = tl.load(p_g_entropy + o_row, mask=o_i < n_pos, other=0.0)
            b_mass = tl.load(p_row + o_row, mask=o_i < n_pos, other=1.0)
            b_mean = tl.load(p_mean_log + o_row, mask=o_i < n_pos, other=0.0)
            b_size = tl.abs(b_a)
            b_slope = (b_mean - tl.log(tl.where(b_size > 0, b_size, 1.0))) / tl.where(b_mass > 0, b_mass, 1.0)
            b_p += tl.where((b_size > 0) & (b_mass > 0), b_sign * b_slope * b_g, 0.0)
    b_ds = b_p * b_c
    if SOFTMAX:
        b_ds = b_w * (b_ds - tl.load(p_delta + o_row, mask=o_i < n_pos, other=0.0))
    if CAP:
        b_ds = b_ds * (1.0 - b_tanh * b_tanh)
    return b_a, b_ds * scale


@triton.jit
def rows_kernel(
    p_q, p_k, p_v, p_do, p_bounds, p_codes, p_lists, p_c,
    p_lse, p_delta, p_g_row, p_g_set, p_g_entropy, p_row, p_mean_log, p_dq,
    scale, cap, bias, c, n_pos, n_heads, n_code_samples, n_list_samples,
    s_qb, s_qt, s_qh, s_kb, s_kt, s_kh, s_vb, s_vt, s_vh, s_ob, s_ot, s_oh, s_gb, s_gt, s_gh,
    D: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
    BDALL: tl.constexpr,
    SOFTMAX: tl.constexpr, CAUSAL: tl.constexpr, CAP: tl.constexpr, BIAS: tl.constexpr,
    N_SETS: tl.constexpr, ALLOWED: tl.constexpr, INTERVENE: tl.constexpr, C_POINTER: tl.constexpr,
    GRAD_ROW: tl.constexpr, GRAD_SET: tl.constexpr, GRAD_ENTROPY: tl.constexpr,
    CODED: tl.constexpr, LISTED: tl.constexpr, K: tl.constexpr,
    PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """dQ of a block of BM queries."""
    n_blocks = tl.cdiv(n_pos, BM)
    first_i = (tl.program_id(0) % n_blocks) * BM
    i_bh = tl.program_id(0) // n_blocks
    i_b = (i_bh // n_heads).to(tl.int64)
    i_h = (i_bh % n_heads).to(tl.int64)
    p_q += i_b * s_qb + i_h * s_qh
    p_k += i_b * s_kb + i_h * s_kh
    p_v += i_b * s_vb + i_h * s_vh
    p_do += i_b * s_ob + i_h * s_oh
    o_m = first_i + tl.arange(0, BM)
    o_d = tl.arange(0, BDALL)
    b_dq = tl.zeros([BM, BDALL], tl.float32)
    start, end = 0, n_pos
    if CAUSAL:
        end = tl.minimum(end, first_i + BM)
    if ALLOWED:
        farthest = tl.load(p_bounds + N_SETS * 5 + 1)
        start = tl.where(farthest < first_i, (first_i - farthest) // BN * BN, 0)
        end = tl.minimum(end, tl.load(p_bounds + N_SETS * 5 + 2))
    for first_j in range(start, end, BN):
        o_n = first_j + tl.arange(0, BN)
        b_s = _product_of_rows(p_q, s_qt, o_m, p_k, s_kt, o_n, n_pos, D, BM, BN, BD, PRECISION, WIDEN)
        b_p = _product_of_rows(p_do, s_ot, o_m, p_v, s_vt, o_n, n_pos, DV, BM, BN, BV, PRECISION, WIDEN)
        _, b_ds = _gradient_of_scores(
            b_s, b_p, o_m[:, None], o_n[None, :], i_b, i_bh, n_pos, scale, cap, bias, c, p_c,
            p_bounds, p_codes, p_lists, n_code_samples, n_list_samples,
            p_lse, p_delta, p_g_row, p_g_set, p_g_entropy, p_row, p_mean_log, first_i, first_j, BM, BN,
            SOFTMAX, CAUSAL, CAP, BIAS, N_SETS, ALLOWED, INTERVENE, C_POINTER, GRAD_ROW, GRAD_SET, GRAD_ENTROPY,
            CODED, LISTED, K,
        )  # fmt: skip
        b_dq += _weighted_rows(b_ds, p_k, s_kt, o_n, o_d, n_pos, D, BDALL, PRECISION, WIDEN)
    _store(p_dq + i_b * s_gb + i_h * s_gh, s_gt, o_m, o_d, n_pos, b_dq, D, BDALL)


@triton.jit
def columns_kernel(
    p_q, p_k, p_v, p_do, p_bounds, p_codes, p_lists, p_c,
    p_lse, p_delta, p_g_row, p_g_set, p_g_entropy, p_row, p_mean_log, p_dk, p_dv,
    scale, cap, bias, c, n_pos, n_heads, n_code_samples, n_list_samples,
    s_qb, s_qt, s_qh, s_kb, s_kt, s_kh, s_vb, s_vt, s_vh, s_ob, s_ot, s_oh, s_gb, s_gt, s_gh, s_wb, s_wt, s_wh,
    D: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
    BDALL: tl.constexpr, BVALL: tl.constexpr,
    SOFTMAX: tl.constexpr, CAUSAL: tl.constexpr, CAP: tl.constexpr, BIAS: tl.constexpr,
    N_SETS: tl.constexpr, ALLOWED: tl.constexpr, INTERVENE: tl.constexpr, C_POINTER: tl.constexpr,
    GRAD_ROW: tl.constexpr, GRAD_SET: tl.constexpr, GRAD_ENTROPY: tl.constexpr,
    CODED: tl.constexpr, LISTED: tl.constexpr, K: tl.constexpr,
    PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """dK and dV of a block of BM keys, over blocks of BN queries."""
    n_blocks = tl.cdiv(n_pos, BM)
    first_j = (tl.program_id(0) % n_blocks) * BM
    i_bh = tl.program_id(0) // n_blocks
    i_b = (i_bh // n_heads).to(tl.int64)
    i_h = (i_bh % n_heads).to(tl.int64)
    p_q += i_b * s_qb + i_h * s_qh
    p_k += i_b * s_kb + i_h * s_kh
    p_v += i_b * s_vb + i_h * s_vh
    p_do += i_b * s_ob + i_h * s_oh
    o_m = first_j + tl.arange(0, BM)
    o_d = tl.arange(0, BDALL)
    o_v = tl.arange(0, BVALL)
    b_dk = tl.zeros([BM, BDALL], tl.float32)
    b_dv = tl.zeros([BM, BVALL], tl.float32)
    start, end = 0, n_pos
    if CAUSAL:
        start = first_j // BN * BN
    if ALLOWED:
        farthest = tl.load(p_bounds + N_SETS * 5 + 1)
        # Queries that lie farther behind the last key of the block do not see it.
        end = tl.where(farthest < n_pos, tl.minimum(end, first_j + BM + farthest), end)
    for first_i in range(start, end, BN):
        o_n = first_i + tl.arange(0, BN)
        b_s = _product_of_rows(p_k, s_kt, o_m, p_q, s_qt, o_n, n_pos, D, BM, BN, BD, PRECISION, WIDEN)
        b_p = _product_of_rows(p_v, s_vt, o_m, p_do, s_ot, o_n, n_pos, DV, BM, BN, BV, PRECISION, WIDEN)
        b_a, b_ds = _gradient_of_scores(
            b_s, b_p, o_n[None, :], o_m[:, None], i_b, i_bh, n_pos, scale, cap, bias, c, p_c,
            p_bounds, p_codes, p_lists, n_code_samples, n_list_samples,
            p_lse, p_delta, p_g_row, p_g_set, p_g_entropy, p_row, p_mean_log, first_i, first_j, BN, BM,
            SOFTMAX, CAUSAL, CAP, BIAS, N_SETS, ALLOWED, INTERVENE, C_POINTER, GRAD_ROW, GRAD_SET, GRAD_ENTROPY,
            CODED, LISTED, K,
        )  # fmt: skip
        b_dv += _weighted_rows(b_a, p_do, s_ot, o_n, o_v, n_pos, DV, BVALL, PRECISION, WIDEN)
        b_dk += _weighted_rows(b_ds, p_q, s_qt, o_n, o_d, n_pos, D, BDALL, PRECISION, WIDEN)
    _store(p_dk + i_b * s_gb + i_h * s_gh, s_gt, o_m, o_d, n_pos, b_dk, D, BDALL)
    _store(p_dv + i_b * s_wb + i_h * s_wh, s_wt, o_m, o_v, n_pos, b_dv, DV, BVALL)
