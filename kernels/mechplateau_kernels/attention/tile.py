"""Linear attention with masses for short sequences: one program holds all keys of its query rows.

Forward, one program per (batch, head, block of BM query rows):
  1. S = Q_m Kᵀ, over chunks of the head dimension                        [BM, BT]
  2. A = scale · S, zero above the diagonal, · c on the intervened positions
  3. row_mass = Σ_j |A_ij|, set_mass = Σ_{j in set} |A_ij|                while A is in registers
  4. O = A V, over chunks of the value dimension

Backward recomputes S and adds, with P = dO Vᵀ and the masses' gradients g:
  5. dA = P + sign(A) (g_row_i + Σ_s [ij in set s] g_set_si);  dS = dA, zero above the diagonal, · c · scale
  6. dQ = dS K,  dK = dSᵀ Q,  dV = Aᵀ dO
For up to 32 positions one program does all three. Beyond, the rows are cut into blocks of 32, and so
that every program still owns what it writes, dQ is made by row blocks and dK, dV by column blocks,
each from scores computed in the orientation it needs (no transposed product, no atomics).

Every product has at most 32 rows, so that Triton compiles it to `mma.sync` on all cards: with 64 rows
Hopper would get `wgmma` with operands in registers, which several ptxas versions miscompile silently
(flash-linear-attention issues 640, 984; triton issue 11366). Nothing of size [pos, pos] leaves the
program, so all results are the same bits from run to run.

Sets are bit planes of one uint8 `[1 or batch, pos, pos]`: bit s is metric set s, bit N_SETS the
intervention. Names: `p_` pointer, `o_` offsets, `b_` block of values, `s_` stride.
"""

import triton
import triton.language as tl

__all__ = ["backward_columns_kernel", "backward_kernel", "backward_rows_kernel", "forward_kernel"]


@triton.jit
def _load(p_x, s_x, o_rows, o_cols, n_rows, N_COLS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """Block of rows of a matrix with unit column stride, zero outside it."""
    p_block = p_x + o_rows.to(tl.int64)[:, None] * s_x + o_cols[None, :]
    # Where chunks fit the width the mask is the same along a row, which keeps 16-byte loads.
    if N_COLS % BLOCK_COLS == 0:
        return tl.load(p_block, mask=(o_rows < n_rows)[:, None], other=0.0)
    else:
        return tl.load(p_block, mask=(o_rows < n_rows)[:, None] & (o_cols < N_COLS)[None, :], other=0.0)


@triton.jit
def _store(p_x, s_x, o_rows, o_cols, n_rows, b_x, N_COLS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    p_block = p_x + o_rows.to(tl.int64)[:, None] * s_x + o_cols[None, :]
    b_x = b_x.to(p_x.dtype.element_ty)
    if N_COLS % BLOCK_COLS == 0:
        tl.store(p_block, b_x, mask=(o_rows < n_rows)[:, None])
    else:
        tl.store(p_block, b_x, mask=(o_rows < n_rows)[:, None] & (o_cols < N_COLS)[None, :])


@triton.jit
def _product_of_rows(
    p_x, s_x, o_x, p_y, s_y, o_y, n_rows,
    D: tl.constexpr, BX: tl.constexpr, BY: tl.constexpr, BD: tl.constexpr,
    PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """X Yᵀ for rows o_x of X and o_y of Y, `[BX, BY]`, summed in float32 over chunks of D."""
    b_xy = tl.zeros([BX, BY], tl.float32)
    for i_d in range(0, D, BD):
        o_d = i_d + tl.arange(0, BD)
        b_x = _load(p_x, s_x, o_x, o_d, n_rows, D, BD)
        b_y = _load(p_y, s_y, o_y, o_d, n_rows, D, BD)
        if WIDEN:
            b_x = b_x.to(tl.float32)
            b_y = b_y.to(tl.float32)
        b_xy = tl.dot(b_x, tl.trans(b_y), b_xy, input_precision=PRECISION)
    return b_xy


@triton.jit
def _round_to_tf32(b_x):
    """To the nearest tf32 (half away from zero); the tensor core alone would cut off. NaN stays as it is."""
    b_bits = (b_x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
    return tl.where(b_x == b_x, b_bits.to(tl.float32, bitcast=True), b_x)


@triton.jit
def _weighted_rows(
    b_w, p_x, s_x, o_x, o_d, n_rows,
    D: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """W X for one chunk of columns of X.

    bfloat16 multiplies in bfloat16. float16 goes through tf32, whose mantissa is as long and whose
    range is float32's: an unnormalized score may exceed 65504.
    """
    b_x = _load(p_x, s_x, o_x, o_d, n_rows, D, BD)
    if b_x.dtype == tl.float16:
        return tl.dot(_round_to_tf32(b_w), b_x.to(tl.float32), input_precision="tf32")
    else:
        b_w = b_w.to(b_x.dtype)
        if WIDEN:
            b_w = b_w.to(tl.float32)
            b_x = b_x.to(tl.float32)
        return tl.dot(b_w, b_x, input_precision=PRECISION)


@triton.jit
def _bits(p_bits, o_i, o_j, n_pos):
    return tl.load(
        p_bits + o_i * n_pos + o_j, mask=(o_i < n_pos) & (o_j < n_pos), other=0
    ).to(tl.int32)  # fmt: skip


@triton.jit
def _factor(b_bits, p_c, c, N_SETS: tl.constexpr, C_POINTER: tl.constexpr):
    """c where the intervention's bit is set, else 1."""
    if C_POINTER:
        c = tl.load(p_c)
    return tl.where(((b_bits >> N_SETS) & 1) != 0, c, 1.0)


@triton.jit
def forward_kernel(
    p_q, p_k, p_v, p_bits, p_c, p_o, p_row, p_set,
    scale, c, n_pos, n_heads,
    s_qb, s_qt, s_qh, s_kb, s_kt, s_kh, s_vb, s_vt, s_vh, s_ob, s_ot, s_oh, s_bits,
    D: tl.constexpr, DV: tl.constexpr,
    BM: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
    CAUSAL: tl.constexpr, N_SETS: tl.constexpr, INTERVENE: tl.constexpr, C_POINTER: tl.constexpr,
    PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    i_block = tl.program_id(0)
    i_m = i_block % (BT // BM)
    i_bh = i_block // (BT // BM)
    i_b = (i_bh // n_heads).to(tl.int64)
    i_h = (i_bh % n_heads).to(tl.int64)
    o_m = i_m * BM + tl.arange(0, BM)
    o_t = tl.arange(0, BT)

    b_a = _product_of_rows(
        p_q + i_b * s_qb + i_h * s_qh, s_qt, o_m, p_k + i_b * s_kb + i_h * s_kh, s_kt, o_t, n_pos,
        D, BM, BT, BD, PRECISION, WIDEN,
    )  # fmt: skip
    b_a = b_a * scale
    if CAUSAL:
        b_a = tl.where(o_m[:, None] >= o_t[None, :], b_a, 0.0)
    if N_SETS + INTERVENE > 0:
        b_bits = _bits(p_bits + i_b * s_bits, o_m[:, None], o_t[None, :], n_pos)
        if INTERVENE:
            b_a = b_a * _factor(b_bits, p_c, c, N_SETS, C_POINTER)

    b_abs = tl.abs(b_a)
    o_row = i_bh.to(tl.int64) * n_pos + o_m
    tl.store(p_row + o_row, tl.sum(b_abs, axis=1), mask=o_m < n_pos)
    for i_s in tl.static_range(N_SETS):
        b_set = tl.sum(tl.where(((b_bits >> i_s) & 1) != 0, b_abs, 0.0), axis=1)
        o_set = (i_bh.to(tl.int64) * N_SETS + i_s) * n_pos + o_m
        tl.store(p_set + o_set, b_set, mask=o_m < n_pos)

    p_v += i_b * s_vb + i_h * s_vh
    p_o += i_b * s_ob + i_h * s_oh
    for i_v in range(0, DV, BV):
        o_v = i_v + tl.arange(0, BV)
        b_o = _weighted_rows(b_a, p_v, s_vt, o_t, o_v, n_pos, DV, BV, PRECISION, WIDEN)
        _store(p_o, s_ot, o_m, o_v, n_pos, b_o, DV, BV)


@triton.jit
def _maps(
    b_s, b_p, o_i, o_j, p_bits, p_c, p_g_row, p_g_set, i_bh, scale, c, n_pos,
    CAUSAL: tl.constexpr, N_SETS: tl.constexpr, INTERVENE: tl.constexpr, C_POINTER: tl.constexpr,
    GRAD_ROW: tl.constexpr, GRAD_SET: tl.constexpr,
):  # fmt: skip
    """A and dS from the raw scores and P = dO Vᵀ; `o_i`, `o_j` (query, key) broadcast to the block.

    Serves both orientations: with queries along rows, or along columns for the transposed maps.
    """
    b_a = b_s * scale
    b_ds = b_p
    if CAUSAL:
        b_a = tl.where(o_i >= o_j, b_a, 0.0)
    if INTERVENE or (GRAD_SET and N_SETS > 0):
        b_bits = _bits(p_bits, o_i, o_j, n_pos)
        if INTERVENE:
            b_factor = _factor(b_bits, p_c, c, N_SETS, C_POINTER)
            b_a = b_a * b_factor
    if GRAD_ROW or GRAD_SET:
        b_sign = tl.where(b_a > 0, 1.0, 0.0) - tl.where(b_a < 0, 1.0, 0.0)
        if GRAD_ROW:
            b_g = tl.load(p_g_row + i_bh.to(tl.int64) * n_pos + o_i, mask=o_i < n_pos, other=0.0)
            b_ds += b_sign * b_g
        if GRAD_SET:
            for i_s in tl.static_range(N_SETS):
                o_g = (i_bh.to(tl.int64) * N_SETS + i_s) * n_pos + o_i
                b_g = tl.load(p_g_set + o_g, mask=o_i < n_pos, other=0.0)
                b_ds += tl.where(((b_bits >> i_s) & 1) != 0, b_sign * b_g, 0.0)
    if CAUSAL:
        b_ds = tl.where(o_i >= o_j, b_ds, 0.0)
    if INTERVENE:
        b_ds = b_ds * b_factor
    return b_a, b_ds * scale


@triton.jit
def backward_kernel(
    p_q, p_k, p_v, p_do, p_g_row, p_g_set, p_bits, p_c, p_dq, p_dk, p_dv,
    scale, c, n_pos, n_heads,
    s_qb, s_qt, s_qh, s_kb, s_kt, s_kh, s_vb, s_vt, s_vh, s_ob, s_ot, s_oh,
    s_gb, s_gt, s_gh, s_wb, s_wt, s_wh, s_bits,
    D: tl.constexpr, DV: tl.constexpr,
    BM: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
    CAUSAL: tl.constexpr, N_SETS: tl.constexpr, INTERVENE: tl.constexpr, C_POINTER: tl.constexpr,
    GRAD_ROW: tl.constexpr, GRAD_SET: tl.constexpr,
    PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """All gradients of one (batch, head) of up to 32 positions; strides `g` of dQ and dK, `w` of dV."""
    i_bh = tl.program_id(0)
    i_b = (i_bh // n_heads).to(tl.int64)
    i_h = (i_bh % n_heads).to(tl.int64)
    o_t = tl.arange(0, BT)
    p_q += i_b * s_qb + i_h * s_qh
    p_k += i_b * s_kb + i_h * s_kh
    p_v += i_b * s_vb + i_h * s_vh
    p_do += i_b * s_ob + i_h * s_oh

    b_s = _product_of_rows(p_q, s_qt, o_t, p_k, s_kt, o_t, n_pos, D, BT, BT, BD, PRECISION, WIDEN)
    b_p = _product_of_rows(p_do, s_ot, o_t, p_v, s_vt, o_t, n_pos, DV, BT, BT, BV, PRECISION, WIDEN)
    b_a, b_ds = _maps(
        b_s, b_p, o_t[:, None], o_t[None, :], p_bits + i_b * s_bits, p_c, p_g_row, p_g_set, i_bh,
        scale, c, n_pos, CAUSAL, N_SETS, INTERVENE, C_POINTER, GRAD_ROW, GRAD_SET,
    )  # fmt: skip

    p_dq += i_b * s_gb + i_h * s_gh
    p_dk += i_b * s_gb + i_h * s_gh
    p_dv += i_b * s_wb + i_h * s_wh
    b_ds_t = tl.trans(b_ds)
    for i_d in range(0, D, BD):
        o_d = i_d + tl.arange(0, BD)
        b_dq = _weighted_rows(b_ds, p_k, s_kt, o_t, o_d, n_pos, D, BD, PRECISION, WIDEN)
        _store(p_dq, s_gt, o_t, o_d, n_pos, b_dq, D, BD)
        b_dk = _weighted_rows(b_ds_t, p_q, s_qt, o_t, o_d, n_pos, D, BD, PRECISION, WIDEN)
        _store(p_dk, s_gt, o_t, o_d, n_pos, b_dk, D, BD)
    b_a_t = tl.trans(b_a)
    for i_v in range(0, DV, BV):
        o_v = i_v + tl.arange(0, BV)
        b_dv = _weighted_rows(b_a_t, p_do, s_ot, o_t, o_v, n_pos, DV, BV, PRECISION, WIDEN)
        _store(p_dv, s_wt, o_t, o_v, n_pos, b_dv, DV, BV)


@triton.jit
def backward_rows_kernel(
    p_q, p_k, p_v, p_do, p_g_row, p_g_set, p_bits, p_c, p_dq, p_dk, p_dv,
    scale, c, n_pos, n_heads,
    s_qb, s_qt, s_qh, s_kb, s_kt, s_kh, s_vb, s_vt, s_vh, s_ob, s_ot, s_oh,
    s_gb, s_gt, s_gh, s_wb, s_wt, s_wh, s_bits,
    D: tl.constexpr, DV: tl.constexpr,
    BM: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
    CAUSAL: tl.constexpr, N_SETS: tl.constexpr, INTERVENE: tl.constexpr, C_POINTER: tl.constexpr,
    GRAD_ROW: tl.constexpr, GRAD_SET: tl.constexpr,
    PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """dQ of one block of BM query rows."""
    i_block = tl.program_id(0)
    i_m = i_block % (BT // BM)
    i_bh = i_block // (BT // BM)
    i_b = (i_bh // n_heads).to(tl.int64)
    i_h = (i_bh % n_heads).to(tl.int64)
    o_m = i_m * BM + tl.arange(0, BM)
    o_t = tl.arange(0, BT)
    p_q += i_b * s_qb + i_h * s_qh
    p_k += i_b * s_kb + i_h * s_kh
    p_v += i_b * s_vb + i_h * s_vh
    p_do += i_b * s_ob + i_h * s_oh

    b_s = _product_of_rows(p_q, s_qt, o_m, p_k, s_kt, o_t, n_pos, D, BM, BT, BD, PRECISION, WIDEN)
    b_p = _product_of_rows(p_do, s_ot, o_m, p_v, s_vt, o_t, n_pos, DV, BM, BT, BV, PRECISION, WIDEN)
    _, b_ds = _maps(
        b_s, b_p, o_m[:, None], o_t[None, :], p_bits + i_b * s_bits, p_c, p_g_row, p_g_set, i_bh,
        scale, c, n_pos, CAUSAL, N_SETS, INTERVENE, C_POINTER, GRAD_ROW, GRAD_SET,
    )  # fmt: skip

    p_dq += i_b * s_gb + i_h * s_gh
    for i_d in range(0, D, BD):
        o_d = i_d + tl.arange(0, BD)
        b_dq = _weighted_rows(b_ds, p_k, s_kt, o_t, o_d, n_pos, D, BD, PRECISION, WIDEN)
        _store(p_dq, s_gt, o_m, o_d, n_pos, b_dq, D, BD)


@triton.jit
def backward_columns_kernel(
    p_q, p_k, p_v, p_do, p_g_row, p_g_set, p_bits, p_c, p_dq, p_dk, p_dv,
    scale, c, n_pos, n_heads,
    s_qb, s_qt, s_qh, s_kb, s_kt, s_kh, s_vb, s_vt, s_vh, s_ob, s_ot, s_oh,
    s_gb, s_gt, s_gh, s_wb, s_wt, s_wh, s_bits,
    D: tl.constexpr, DV: tl.constexpr,
    BM: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
    CAUSAL: tl.constexpr, N_SETS: tl.constexpr, INTERVENE: tl.constexpr, C_POINTER: tl.constexpr,
    GRAD_ROW: tl.constexpr, GRAD_SET: tl.constexpr,
    PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """dK and dV of one block of BM keys, from the transposed scores K_m Qᵀ and V_m dOᵀ."""
    i_block = tl.program_id(0)
    i_m = i_block % (BT // BM)
    i_bh = i_block // (BT // BM)
    i_b = (i_bh // n_heads).to(tl.int64)
    i_h = (i_bh % n_heads).to(tl.int64)
    o_m = i_m * BM + tl.arange(0, BM)
    o_t = tl.arange(0, BT)
    p_q += i_b * s_qb + i_h * s_qh
    p_k += i_b * s_kb + i_h * s_kh
    p_v += i_b * s_vb + i_h * s_vh
    p_do += i_b * s_ob + i_h * s_oh

    b_s_t = _product_of_rows(p_k, s_kt, o_m, p_q, s_qt, o_t, n_pos, D, BM, BT, BD, PRECISION, WIDEN)
    b_p_t = _product_of_rows(p_v, s_vt, o_m, p_do, s_ot, o_t, n_pos, DV, BM, BT, BV, PRECISION, WIDEN)
    b_a_t, b_ds_t = _maps(
        b_s_t, b_p_t, o_t[None, :], o_m[:, None], p_bits + i_b * s_bits, p_c, p_g_row, p_g_set, i_bh,
        scale, c, n_pos, CAUSAL, N_SETS, INTERVENE, C_POINTER, GRAD_ROW, GRAD_SET,
    )  # fmt: skip

    p_dk += i_b * s_gb + i_h * s_gh
    p_dv += i_b * s_wb + i_h * s_wh
    for i_d in range(0, D, BD):
        o_d = i_d + tl.arange(0, BD)
        b_dk = _weighted_rows(b_ds_t, p_q, s_qt, o_t, o_d, n_pos, D, BD, PRECISION, WIDEN)
        _store(p_dk, s_gt, o_m, o_d, n_pos, b_dk, D, BD)
    for i_v in range(0, DV, BV):
        o_v = i_v + tl.arange(0, BV)
        b_dv = _weighted_rows(b_a_t, p_do, s_ot, o_t, o_v, n_pos, DV, BV, PRECISION, WIDEN)
        _store(p_dv, s_wt, o_m, o_v, n_pos, b_dv, DV, BV)
