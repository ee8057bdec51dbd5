#include "ops/recurrent/cell_text_cuda.h"

#include <fmt/format.h>

#include "ops/fault_text_cuda.h"

namespace onnxgrad::ops::recurrent {
namespace {

// The names of the words, and functions that all cells use.
constexpr const char* kCommon = R"(
enum {
  og_R, og_B, og_lengths, og_initial_h, og_initial_c, og_P, og_Y, og_gates, og_kept, og_dY, og_dYh,
  og_dYc, og_out_y, og_out_yh, og_out_yc, og_h, og_c, og_side, og_before, og_dgates, og_dm,
  og_dinitial_h, og_dinitial_c, og_cells, og_record, og_steps, og_batch, og_hidden, og_directions,
  og_reverse, og_linear, og_coupled, og_clip, og_acts, og_count = og_acts + 18,
  og_rows = 4, og_threads = 256 * og_parts
};

// Functions in the order of Act (ops/recurrent/cell.h).
OG_FUNCTION_APART og_t og_value(int kind, og_t alpha, og_t beta, og_t x) {
  switch (kind) {
    case 0: return og_sigmoid(x);
    case 1: return og_tanh(x);
    case 2: return og_max((og_t)0, x);
    case 3: return alpha * x + beta;
    case 4: return x < 0 ? alpha * x : x;
    case 5: return x > alpha ? x : (og_t)0;
    case 6: return alpha * og_tanh(beta * x);
    case 7: return og_min((og_t)1, og_max((og_t)0, alpha * x + beta));
    case 8: return x < 0 ? alpha * (og_t)expm1((double)x) : x;
    case 9: return x / ((og_t)1 + og_abs(x));
    default: return og_softplus(x);
  }
}
OG_FUNCTION_APART og_t og_slope(int kind, og_t alpha, og_t beta, og_t x, og_t y) {
  switch (kind) {
    case 0: return y * ((og_t)1 - y);
    case 1: return (og_t)1 - y * y;
    case 2: return x > 0 ? (og_t)1 : (og_t)0;
    case 3: return alpha;
    case 4: return x < 0 ? alpha : (og_t)1;
    case 5: return x > alpha ? (og_t)1 : (og_t)0;
    case 6: {
      const og_t t = og_tanh(beta * x);
      return alpha * beta * ((og_t)1 - t * t);
    }
    case 7: return y > 0 && y < 1 ? alpha : (og_t)0;
    case 8: return x < 0 ? alpha * og_exp(x) : (og_t)1;
    case 9: {
      const og_t size = (og_t)1 + og_abs(x);
      return (og_t)1 / (size * size);
    }
    default: return og_sigmoid(x);
  }
}

// A function of a direction, of its clipped argument where it `clips`.
struct og_function {
  int kind;
  og_t alpha, beta, clip;
  OG_FUNCTION_MEMBER og_t bounded(og_t x) const {
    return clip > 0 && x == x ? (x > clip ? clip : x < -clip ? -clip : x) : x;
  }
  OG_FUNCTION_MEMBER og_t value(og_t x) const { return og_value(kind, alpha, beta, bounded(x)); }
  OG_FUNCTION_MEMBER og_t slope(og_t x, og_t y) const {
    if (clip > 0 && !(og_abs(x) <= clip)) return 0;
    return og_slope(kind, alpha, beta, bounded(x), y);
  }
};
template <class W>
OG_FUNCTION og_function og_function_of(const W& a, og_i64 d, int i, bool clips) {
  const int at = og_acts + (int)(d * 9) + i * 3;
  return {(int)a.integer(at), (og_t)a.real(at + 1), (og_t)a.real(at + 2),
          clips ? (og_t)a.real(og_clip) : (og_t)0};
}

// c[r, m] = start[r, m] + bias[m] + sum over k of a[r, k] b[k, m], for the rows of a block; start
// and bias may be absent, start may be c.
OG_FUNCTION_APART void og_times(const og_t* a, og_i64 a_row, const og_t* b, og_i64 b_row, og_i64 depth,
                          og_i64 columns, og_i64 rows, og_t* c, og_i64 c_row, const og_t* start,
                          const og_t* bias) {
  OG_SHARED og_t tile[og_rows][256];
  OG_SHARED og_t sums[og_parts][og_rows][256];
  const int lane = threadIdx.x % 256, part = threadIdx.x / 256;
  for (og_i64 first = 0; first < columns; first += 256) {
    const og_i64 m = first + lane;
    og_t sum[og_rows];
    for (int r = 0; r < og_rows; ++r) sum[r] = 0;
    for (og_i64 from = 0; from < depth; from += 256) {
      const int span = depth - from < 256 ? (int)(depth - from) : 256;
      __syncthreads();
      for (int r = part; r < og_rows; r += og_parts) {
        tile[r][lane] = r < rows && lane < span ? a[r * a_row + from + lane] : (og_t)0;
      }
      __syncthreads();
      if (m >= columns) continue;
      const int end = span * (part + 1) / og_parts;
      const og_t* line = b + from * b_row + m;
#pragma unroll 8
      for (int k = span * part / og_parts; k < end; ++k) {
        const og_t factor = line[k * b_row];
        for (int r = 0; r < og_rows; ++r) sum[r] = og_fma(tile[r][k], factor, sum[r]);
      }
    }
    if (og_parts > 1) {
      for (int r = 0; r < og_rows; ++r) sums[part][r][lane] = sum[r];
      __syncthreads();
      for (int p = 1; p < og_parts && part == 0; ++p) {
        for (int r = 0; r < og_rows; ++r) sum[r] = sum[r] + sums[p][r][lane];
      }
    }
    for (int r = 0; r < og_rows && part == 0 && r < rows && m < columns; ++r) {
      const og_t before = start == 0 ? (og_t)0 : start[r * c_row + m];
      c[r * c_row + m] = before + (bias == 0 ? sum[r] : sum[r] + bias[m]);
    }
  }
  __syncthreads();
}

template <class W>
OG_FUNCTION bool og_valid(const W& a, og_i64 step, og_i64 row) {
  const og_i32* const lengths = a.template pointer<const og_i32>(og_lengths);
  return lengths == 0 || step < lengths[row];
}

// The rows of a block: sequences [first, first + rows) of direction d.
struct og_block_rows {
  og_i64 d, first, rows, steps, batch, hidden;
  bool goes_back;
  // Of arrays [D, N, H] and [D, T, N, H].
  OG_FUNCTION_MEMBER og_i64 state() const { return (d * batch + first) * hidden; }
  OG_FUNCTION_MEMBER og_i64 at(og_i64 step) const {
    return ((d * steps + step) * batch + first) * hidden;
  }
  // The step before one in the direction; out of range for the first.
  OG_FUNCTION_MEMBER og_i64 before(og_i64 step) const { return goes_back ? step + 1 : step - 1; }
};
template <class W>
OG_FUNCTION og_block_rows og_block_of(const W& a, og_i64 b) {
  og_block_rows s;
  s.steps = a.integer(og_steps);
  s.batch = a.integer(og_batch);
  s.hidden = a.integer(og_hidden);
  const og_i64 blocks = (s.batch + og_rows - 1) / og_rows;
  s.d = b / blocks;
  s.first = b % blocks * og_rows;
  s.rows = s.batch - s.first < og_rows ? s.batch - s.first : og_rows;
  s.goes_back = a.integer(og_reverse) != 0 || s.d == 1;
  return s;
}
template <class W>
OG_FUNCTION og_i64 og_blocks(const W& a) {
  return a.integer(og_directions) * ((a.integer(og_batch) + og_rows - 1) / og_rows);
}

template <class W>
OG_FUNCTION og_t og_zero_or(const W& a, int word, og_i64 i) {
  const og_t* const from = a.template pointer<const og_t>(word);
  return from == 0 ? (og_t)0 : from[i];
}

// States before the first step.
template <class W>
OG_FUNCTION void og_begin(const W& a, const og_block_rows& s, int state, int initial) {
  og_t* const to = a.template pointer<og_t>(state) + s.state();
  for (og_i64 i = threadIdx.x; i < s.rows * s.hidden; i += og_threads) {
    to[i] = og_zero_or(a, initial, s.state() + i);
  }
}
// A last state, or the cotangent of one; zeros for sequences without steps.
template <class W>
OG_FUNCTION void og_copy_last(const W& a, const og_block_rows& s, int from, int to) {
  if (a.template pointer<og_t>(to) == 0) return;
  for (og_i64 i = threadIdx.x; i < s.rows * s.hidden; i += og_threads) {
    const bool has_steps = og_valid(a, 0, s.first + i / s.hidden);
    a.template pointer<og_t>(to)[s.state() + i] =
        has_steps ? og_zero_or(a, from, s.state() + i) : (og_t)0;
  }
}
template <class W>
OG_FUNCTION void og_check_lengths(const W& a, const og_block_rows& s) {
  const og_i32* const lengths = a.template pointer<const og_i32>(og_lengths);
  if (lengths == 0 || s.d != 0 || threadIdx.x >= s.rows) return;
  const og_i64 row = s.first + threadIdx.x;
  if (lengths[row] < 0 || lengths[row] > s.steps) {
    og_refuse(a.template pointer<og_u64>(og_cells), a.integer(og_record), lengths[row], row);
  }
}
// Y [T, D, N, H] of a row and unit.
template <class W>
OG_FUNCTION og_i64 og_y_at(const W& a, const og_block_rows& s, og_i64 step) {
  return ((step * a.integer(og_directions) + s.d) * s.batch + s.first) * s.hidden;
}
// y of the step before, for element i of a block.
template <class W>
OG_FUNCTION og_t og_y_before(const W& a, const og_block_rows& s, og_i64 step, og_i64 i) {
  const og_i64 before = s.before(step);
  if (before < 0 || before >= s.steps || !og_valid(a, before, s.first + i / s.hidden)) {
    return og_zero_or(a, og_initial_h, s.state() + i);
  }
  return a.template pointer<const og_t>(og_Y)[og_y_at(a, s, before) + i];
}
)";

// The loop of a forward kernel around `step`, and of a backward one.
constexpr const char* kForward = R"(
OG_KERNEL(og_forward, og_count) {
  for (og_i64 b = blockIdx.x; b < og_blocks(a); b += gridDim.x) {
    const og_block_rows s = og_block_of(a, b);
    og_check_lengths(a, s);
    og_begin(a, s, og_h, og_initial_h);
    if (og_has_c) og_begin(a, s, og_c, og_initial_c);
    __syncthreads();
    for (og_i64 i = 0; i < s.steps; ++i) {
      og_step(a, s, s.goes_back ? s.steps - 1 - i : i);
      __syncthreads();
    }
    og_copy_last(a, s, og_h, og_out_yh);
    if (og_has_c) og_copy_last(a, s, og_c, og_out_yc);
    __syncthreads();
  }
}

OG_KERNEL(og_backward, og_count) {
  for (og_i64 b = blockIdx.x; b < og_blocks(a); b += gridDim.x) {
    const og_block_rows s = og_block_of(a, b);
    og_copy_last(a, s, og_dYh, og_h);
    if (og_has_c) og_copy_last(a, s, og_dYc, og_c);
    __syncthreads();
    for (og_i64 i = 0; i < s.steps; ++i) {
      og_step_back(a, s, s.goes_back ? i : s.steps - 1 - i);
      __syncthreads();
    }
    for (og_i64 i = threadIdx.x; i < s.rows * s.hidden; i += og_threads) {
      const og_i64 at = s.state() + i;
      if (a.pointer<og_t>(og_dinitial_h) != 0) {
        a.pointer<og_t>(og_dinitial_h)[at] = a.pointer<og_t>(og_h)[at];
      }
      if (og_has_c && a.pointer<og_t>(og_dinitial_c) != 0) {
        a.pointer<og_t>(og_dinitial_c)[at] = a.pointer<og_t>(og_c)[at];
      }
    }
    __syncthreads();
  }
}
)";

constexpr const char* kPlain = R"(
// Adds y' R^T to the sums of a step.
template <class W>
OG_FUNCTION void og_add_hidden(const W& a, const og_block_rows& s, og_i64 step) {
  const og_i64 width = og_gate_count * s.hidden;
  og_t* const gates = a.template pointer<og_t>(og_gates) + s.at(step) * og_gate_count;
  og_times(a.template pointer<const og_t>(og_h) + s.state(), s.hidden,
           a.template pointer<const og_t>(og_R) + s.d * s.hidden * width, width, s.hidden, width,
           s.rows, gates, width, gates, (const og_t*)0);
}
// The cotangent of y' from those of the sums.
template <class W>
OG_FUNCTION void og_hidden_back(const W& a, const og_block_rows& s, og_i64 step) {
  const og_i64 width = og_gate_count * s.hidden;
  og_t* const dh = a.template pointer<og_t>(og_h) + s.state();
  __syncthreads();
  og_times(a.template pointer<const og_t>(og_dgates) + s.at(step) * og_gate_count, width,
           a.template pointer<const og_t>(og_R) + s.d * width * s.hidden, s.hidden, width, s.hidden,
           s.rows, dh, s.hidden, dh, (const og_t*)0);
}
)";

constexpr const char* kRnn = R"(
template <class W>
OG_FUNCTION void og_step(const W& a, const og_block_rows& s, og_i64 step) {
  og_add_hidden(a, s, step);
  const og_function f = og_function_of(a, s.d, 0, true);
  for (og_i64 i = threadIdx.x; i < s.rows * s.hidden; i += og_threads) {
    const bool is_valid = og_valid(a, step, s.first + i / s.hidden);
    og_t y = 0;
    if (is_valid) {
      y = f.value(a.template pointer<const og_t>(og_gates)[s.at(step) + i]);
      a.template pointer<og_t>(og_h)[s.state() + i] = y;
    }
    og_t* const all = a.template pointer<og_t>(og_out_y);
    if (all != 0) all[og_y_at(a, s, step) + i] = y;
  }
}
template <class W>
OG_FUNCTION void og_step_back(const W& a, const og_block_rows& s, og_i64 step) {
  const og_function f = og_function_of(a, s.d, 0, true);
  for (og_i64 i = threadIdx.x; i < s.rows * s.hidden; i += og_threads) {
    og_t before = 0, ds = 0;
    if (og_valid(a, step, s.first + i / s.hidden)) {
      og_t& dh = a.template pointer<og_t>(og_h)[s.state() + i];
      const og_t sum = a.template pointer<const og_t>(og_gates)[s.at(step) + i];
      ds = (dh + og_zero_or(a, og_dY, og_y_at(a, s, step) + i)) * f.slope(sum, f.value(sum));
      before = og_y_before(a, s, step, i);
      dh = 0;
    }
    a.template pointer<og_t>(og_dgates)[s.at(step) + i] = ds;
    a.template pointer<og_t>(og_before)[s.at(step) + i] = before;
  }
  og_hidden_back(a, s, step);
}
)";

constexpr const char* kLstm = R"(
template <class W>
OG_FUNCTION void og_step(const W& a, const og_block_rows& s, og_i64 step) {
  og_add_hidden(a, s, step);
  const og_function f = og_function_of(a, s.d, 0, true), g = og_function_of(a, s.d, 1, true);
  const og_function h = og_function_of(a, s.d, 2, false);
  const og_t* const P = a.template pointer<const og_t>(og_P);
  const og_i64 n = s.hidden;
  for (og_i64 i = threadIdx.x; i < s.rows * n; i += og_threads) {
    const og_i64 row = i / n, unit = i % n;
    og_t& c = a.template pointer<og_t>(og_c)[s.state() + i];
    og_t y = 0;
    if (og_valid(a, step, s.first + row)) {
      const og_t* const sums =
          a.template pointer<const og_t>(og_gates) + s.at(step) * 4 + row * 4 * n + unit;
      const og_t* const p = P == 0 ? P : P + s.d * 3 * n + unit;
      const og_t of_i = P == 0 ? sums[0] : sums[0] + p[0] * c;
      const og_t of_u = P == 0 ? sums[2 * n] : sums[2 * n] + p[2 * n] * c;
      const og_t in = f.value(of_i);
      const og_t keep = a.integer(og_coupled) != 0 ? (og_t)1 - in : f.value(of_u);
      const og_t next = keep * c + in * g.value(sums[3 * n]);
      const og_t of_o = P == 0 ? sums[n] : sums[n] + p[n] * next;
      y = f.value(of_o) * h.value(next);
      c = next;
      a.template pointer<og_t>(og_h)[s.state() + i] = y;
    }
    og_t* const all = a.template pointer<og_t>(og_out_y);
    if (all != 0) all[og_y_at(a, s, step) + i] = y;
    og_t* const kept = a.template pointer<og_t>(og_kept);
    if (kept != 0) kept[s.at(step) + i] = c;
  }
}
template <class W>
OG_FUNCTION void og_step_back(const W& a, const og_block_rows& s, og_i64 step) {
  const og_function f = og_function_of(a, s.d, 0, true), g = og_function_of(a, s.d, 1, true);
  const og_function h = og_function_of(a, s.d, 2, false);
  const og_t* const P = a.template pointer<const og_t>(og_P);
  const og_t* const kept = a.template pointer<const og_t>(og_kept);
  const og_i64 n = s.hidden, before = s.before(step);
  const bool is_first = before < 0 || before >= s.steps;
  for (og_i64 i = threadIdx.x; i < s.rows * n; i += og_threads) {
    const og_i64 row = i / n, unit = i % n;
    const og_i64 gate = s.at(step) * 4 + row * 4 * n + unit;
    og_t* const ds = a.template pointer<og_t>(og_dgates) + gate;
    og_t& y_before = a.template pointer<og_t>(og_before)[s.at(step) + i];
    if (!og_valid(a, step, s.first + row)) {
      ds[0] = ds[n] = ds[2 * n] = ds[3 * n] = 0;
      y_before = 0;
      continue;
    }
    y_before = og_y_before(a, s, step, i);
    const og_t* const sums = a.template pointer<const og_t>(og_gates) + gate;
    const og_t* const p = P == 0 ? P : P + s.d * 3 * n + unit;
    const og_t c = kept[s.at(step) + i];
    const og_t last =
        is_first ? og_zero_or(a, og_initial_c, s.state() + i) : kept[s.at(before) + i];
    const og_t of_i = P == 0 ? sums[0] : sums[0] + p[0] * last;
    const og_t of_o = P == 0 ? sums[n] : sums[n] + p[n] * c;
    const og_t of_u = P == 0 ? sums[2 * n] : sums[2 * n] + p[2 * n] * last;
    const og_t of_n = sums[3 * n];
    const og_t o = f.value(of_o), squashed = h.value(c), in = f.value(of_i), next = g.value(of_n);
    og_t& dh = a.template pointer<og_t>(og_h)[s.state() + i];
    og_t& dc = a.template pointer<og_t>(og_c)[s.state() + i];
    const og_t dy = dh + og_zero_or(a, og_dY, og_y_at(a, s, step) + i);
    const og_t ds_o = dy * squashed * f.slope(of_o, o);
    og_t dcell = dy * o * h.slope(c, squashed) + dc;
    if (P != 0) dcell = dcell + ds_o * p[n];
    og_t keep = (og_t)1 - in, din = next, ds_u = 0;
    if (a.integer(og_coupled) != 0) {
      din = next - last;
    } else {
      keep = f.value(of_u);
      ds_u = dcell * last * f.slope(of_u, keep);
    }
    const og_t ds_i = dcell * din * f.slope(of_i, in);
    ds[0] = ds_i;
    ds[n] = ds_o;
    ds[2 * n] = ds_u;
    ds[3 * n] = dcell * in * g.slope(of_n, next);
    dc = dcell * keep;
    if (P != 0) dc = dc + ds_i * p[0] + ds_u * p[2 * n];
    dh = 0;
  }
  og_hidden_back(a, s, step);
}
)";

constexpr const char* kGru = R"(
template <class W>
OG_FUNCTION void og_step(const W& a, const og_block_rows& s, og_i64 step) {
  const og_i64 n = s.hidden, width = 3 * n;
  const og_function f = og_function_of(a, s.d, 0, true), g = og_function_of(a, s.d, 1, true);
  og_t* const gates = a.template pointer<og_t>(og_gates) + s.at(step) * 3;
  og_t* const state = a.template pointer<og_t>(og_h) + s.state();
  og_t* const side = a.template pointer<og_t>(og_side) + s.state();
  const og_t* const R = a.template pointer<const og_t>(og_R) + s.d * n * width;
  const bool is_linear = a.integer(og_linear) != 0;
  og_times(state, n, R, width, n, 2 * n, s.rows, gates, width, gates, (const og_t*)0);
  og_t* const kept = a.template pointer<og_t>(og_kept);
  og_t* const m = kept == 0 ? side : kept + s.at(step);
  if (is_linear) {
    const og_t* const B = a.template pointer<const og_t>(og_B);
    og_times(state, n, R + 2 * n, width, n, n, s.rows, m, n, (const og_t*)0,
             B == 0 ? B : B + (s.d * 2 + 1) * width + 2 * n);
  } else {
    for (og_i64 i = threadIdx.x; i < s.rows * n; i += og_threads) {
      side[i] = f.value(gates[i / n * width + n + i % n]) * state[i];
    }
    __syncthreads();
    og_times(side, n, R + 2 * n, width, n, n, s.rows, gates + 2 * n, width, gates + 2 * n,
             (const og_t*)0);
  }
  for (og_i64 i = threadIdx.x; i < s.rows * n; i += og_threads) {
    og_t y = 0;
    if (og_valid(a, step, s.first + i / n)) {
      const og_t* const sums = gates + i / n * width + i % n;
      const og_t z = f.value(sums[0]);
      const og_t of_n = is_linear ? sums[2 * n] + f.value(sums[n]) * m[i] : sums[2 * n];
      const og_t next = g.value(of_n);
      y = z * (state[i] - next) + next;
      state[i] = y;
    }
    og_t* const all = a.template pointer<og_t>(og_out_y);
    if (all != 0) all[og_y_at(a, s, step) + i] = y;
  }
}
template <class W>
OG_FUNCTION void og_step_back(const W& a, const og_block_rows& s, og_i64 step) {
  const og_i64 n = s.hidden, width = 3 * n;
  const og_function f = og_function_of(a, s.d, 0, true), g = og_function_of(a, s.d, 1, true);
  const bool is_linear = a.integer(og_linear) != 0;
  const og_t* const R = a.template pointer<const og_t>(og_R) + s.d * n * width;
  const og_t* const gates = a.template pointer<const og_t>(og_gates) + s.at(step) * 3;
  const og_t* const all_kept = a.template pointer<const og_t>(og_kept);
  const og_t* const kept = is_linear ? all_kept + s.at(step) : all_kept;
  og_t* const dgates = a.template pointer<og_t>(og_dgates) + s.at(step) * 3;
  og_t* const before = a.template pointer<og_t>(og_before) + s.at(step);
  og_t* const dm = a.template pointer<og_t>(og_dm) + s.at(step);
  og_t* const dh = a.template pointer<og_t>(og_h) + s.state();
  og_t* const dq = a.template pointer<og_t>(og_side) + s.state();
  for (og_i64 i = threadIdx.x; i < s.rows * n; i += og_threads) {
    const og_i64 at = i / n * width + i % n;
    if (!og_valid(a, step, s.first + i / n)) {
      dgates[at] = dgates[at + n] = dgates[at + 2 * n] = before[i] = dm[i] = 0;
      continue;
    }
    before[i] = og_y_before(a, s, step, i);
    const og_t z = f.value(gates[at]);
    const og_t dy = dh[i] + og_zero_or(a, og_dY, og_y_at(a, s, step) + i);
    const og_t r = f.value(gates[at + n]);
    const og_t of_n = is_linear ? gates[at + 2 * n] + r * kept[i] : gates[at + 2 * n];
    const og_t next = g.value(of_n);
    const og_t dn = dy * ((og_t)1 - z) * g.slope(of_n, next);
    dh[i] = dy * z;
    dgates[at] = dy * (before[i] - next) * f.slope(gates[at], z);
    dgates[at + 2 * n] = dn;
    if (is_linear) {
      dgates[at + n] = dn * kept[i] * f.slope(gates[at + n], r);
      dm[i] = dn * r;
    }
  }
  __syncthreads();
  if (is_linear) {
    og_times(dm, n, R + 2 * n * n, n, n, n, s.rows, dh, n, dh, (const og_t*)0);
  } else {
    og_times(dgates + 2 * n, width, R + 2 * n * n, n, n, n, s.rows, dq, n, (const og_t*)0,
             (const og_t*)0);
    for (og_i64 i = threadIdx.x; i < s.rows * n; i += og_threads) {
      if (!og_valid(a, step, s.first + i / n)) continue;
      const og_i64 at = i / n * width + i % n;
      const og_t r = f.value(gates[at + n]);
      dgates[at + n] = dq[i] * before[i] * f.slope(gates[at + n], r);
      dh[i] = dh[i] + dq[i] * r;
      dm[i] = r * before[i];  // q
    }
    __syncthreads();
  }
  og_times(dgates, width, R, n, 2 * n, n, s.rows, dh, n, dh, (const og_t*)0);
}
)";

}  // namespace

std::string cell_text(Cell cell) {
  const int gates = cell == Cell::kLstm ? 4 : cell == Cell::kGru ? 3 : 1;
  const char* steps = cell == Cell::kLstm ? kLstm : cell == Cell::kGru ? kGru : kRnn;
  return std::string(fault_text()) + kCommon +
         fmt::format("enum {{ og_gate_count = {}, og_has_c = {} }};\n", gates,
                     cell == Cell::kLstm ? 1 : 0) +
         kPlain + steps + kForward;
}

std::string cell_sums_text() {
  return R"(
OG_KERNEL(og_transpose, 5) {
  const og_i64 rows = a.integer(3), columns = a.integer(4);
  for (og_i64 i = og_first(); i < a.integer(2) * rows * columns; i += og_stride()) {
    const og_i64 matrix = i / (rows * columns), place = i % (rows * columns);
    a.pointer<og_t>(1)[i] = a.pointer<const og_t>(
        0)[matrix * rows * columns + place % columns * rows + place / columns];
  }
}

OG_KERNEL(og_bias, 6) {
  const og_i64 rows = a.integer(2), width = a.integer(3);
  for (og_i64 i = og_first(); i < a.integer(4) * rows * width; i += og_stride()) {
    const og_i64 column = i % width;
    const og_t* const bias = a.pointer<const og_t>(1) + i / (rows * width) * 2 * width + column;
    const og_t sum = column < a.integer(5) ? bias[0] + bias[width] : bias[0];
    a.pointer<og_t>(0)[i] = a.pointer<og_t>(0)[i] + sum;
  }
}

OG_KERNEL(og_pad, 6) {
  const og_i64 inputs = a.integer(4), batch = a.integer(5);
  for (og_i64 i = og_first(); i < a.integer(3); i += og_stride()) {
    const og_i64 row = i / inputs;
    a.pointer<og_t>(1)[i] = row / batch < a.pointer<const og_i32>(2)[row % batch]
                                ? a.pointer<const og_t>(0)[i]
                                : (og_t)0;
  }
}

OG_KERNEL(og_copy, 3) {
  const og_t* const from = a.pointer<const og_t>(0);
  for (og_i64 i = og_first(); i < a.integer(2); i += og_stride()) {
    a.pointer<og_t>(1)[i] = from == 0 ? (og_t)0 : from[i];
  }
}

OG_KERNEL(og_add_to, 3) {
  for (og_i64 i = og_first(); i < a.integer(2); i += og_stride()) {
    a.pointer<og_t>(1)[i] = a.pointer<og_t>(1)[i] + a.pointer<const og_t>(0)[i];
  }
}

OG_KERNEL(og_sums, 7) {
  const og_t* const b = a.pointer<const og_t>(1);
  const og_i64 rows = a.integer(4), columns = a.integer(5);
  for (og_i64 first = (og_i64)blockIdx.x * blockDim.x; first < columns; first += og_columns()) {
    const og_i64 column = first + threadIdx.x;
    double sum = 0;
    for (og_i64 row = threadIdx.y; row < rows && column < columns; row += blockDim.y) {
      const og_t value = a.pointer<const og_t>(0)[row * a.integer(6) + column];
      sum += b == 0 ? (double)value : (double)value * (double)b[row * columns + column];
    }
    sum = og_fold_rows<og_sum>(sum);
    if (threadIdx.y != 0 || column >= columns) continue;
    a.pointer<og_t>(2)[column] = (og_t)sum;
    if (a.pointer<og_t>(3) != 0) a.pointer<og_t>(3)[column] = (og_t)sum;
  }
}
)";
}

}  // namespace onnxgrad::ops::recurrent
