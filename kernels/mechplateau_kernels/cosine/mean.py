"""Mean cosine over pairs in one pass over the data, linear in the number of positions.

For a group P of positions, with u_i = x_i / |x_i|:   Σ_{i<j in P} u_i·u_j = (|Σ_P u_i|² − Σ_P |u_i|²) / 2.

One program per (lead, share of the batch); for each sample, each group and each block of rows it loads
full rows once, has their norms and adds the unit vectors up in registers. The shares are added in a
fixed order by `sum_shares_kernel`.
"""

import triton
import triton.language as tl

from .gram import inverse_norm

__all__ = ["mean_kernel"]


@triton.jit
def mean_kernel(
    p_h, p_groups, p_out, factor, n_batch, n_pos, n_groups, n_shares, s_l, s_b, s_t,
    D: tl.constexpr, BD: tl.constexpr, BT: tl.constexpr, FLOOR_SQUARED: tl.constexpr,
):  # fmt: skip
    """`p_out [lead, n_shares]`: the share's sum over samples, groups and pairs, times `factor`.

    `p_groups`: int32 `[pos]`, the group of each position, -1 for none; BD covers D.
    """
    i_share = tl.program_id(0) % n_shares
    i_l = (tl.program_id(0) // n_shares).to(tl.int64)
    o_d = tl.arange(0, BD)
    p_h += i_l * s_l
    b_total = tl.zeros([BD], tl.float32)
    b_own = tl.zeros([BT], tl.float32)
    for i_turn in range((n_batch - i_share + n_shares - 1) // n_shares):
        p_x = p_h + (i_share.to(tl.int64) + i_turn * n_shares) * s_b
        for i_g in range(n_groups):
            b_sum = tl.zeros([BD], tl.float32)
            for i_t in range(0, n_pos, BT):
                o_t = i_t + tl.arange(0, BT)
                # A position outside the group is not even loaded: each row is read once in all.
                in_group = tl.load(p_groups + o_t, mask=o_t < n_pos, other=-1) == i_g
                b_x = tl.load(
                    p_x + o_t.to(tl.int64)[:, None] * s_t + o_d[None, :],
                    mask=in_group[:, None] & (o_d < D)[None, :],
                    other=0.0,
                ).to(tl.float32)
                b_squared = tl.sum(b_x * b_x, axis=1)
                b_inverse = inverse_norm(b_squared, FLOOR_SQUARED)
                b_sum += tl.sum(b_x * b_inverse[:, None], axis=0)
                b_own += b_squared * b_inverse * b_inverse
            b_total += b_sum * b_sum
    tl.store(p_out + tl.program_id(0), (tl.sum(b_total) - tl.sum(b_own)) * factor)
