#include "ops/fused/attention_text_cuda.h"

#include "ops/random_text_cuda.h"

namespace onnxgrad::ops {
namespace {

constexpr const char* kCommon = R"(
enum { og_line = og_size + 1 };  // of a tile in shared memory: neighbouring rows in other banks

template <class W>
OG_FUNCTION og_i64 og_head(const W& a, int view, og_i64 head) {
  const og_i64 inner = head % a.integer(view + 2), rest = head / a.integer(view + 2);
  return a.integer(view) + rest / a.integer(view + 1) * a.integer(view + 3) +
         rest % a.integer(view + 1) * a.integer(view + 4) + inner * a.integer(view + 5);
}

// Rows [first, first + count) of a head, with zeros from row `rows` and column `columns` on.
template <int count, class W, class E>
OG_FUNCTION void og_load(og_t* to, const W& a, const E* from, int view, og_i64 first, og_i64 rows,
                         og_i64 columns) {
  const og_i64 row_step = a.integer(view + 6), column_step = a.integer(view + 7);
  for (int i = threadIdx.x; i < count * og_size; i += 256) {
    const int row = column_step == 1 ? i / og_size : i % count;
    const int column = column_step == 1 ? i % og_size : i / count;
    to[row * og_line + column] = first + row < rows && column < columns
                                     ? (og_t)og_get(from[(first + row) * row_step + column * column_step])
                                     : (og_t)0;
  }
}

// Keys that the query rows before `end` see.
template <class W>
OG_FUNCTION og_i64 og_seen(const W& a, og_i64 end) {
  const og_i64 keys = a.integer(8);
  if (a.integer(11) == 0) return keys;
  const og_i64 seen = end + a.integer(12);
  return seen < 0 ? 0 : seen < keys ? seen : keys;
}

struct og_masks {
  int count;
  og_i64 at[3];
};
template <class W>
OG_FUNCTION og_masks og_masks_of(const W& a, og_i64 head) {
  og_masks masks;
  masks.count = (int)a.integer(14);
  for (int m = 0; m < masks.count; ++m) masks.at[m] = og_head(a, 57 + 11 * m + 3, head);
  return masks;
}

// A score of a product, scaled and masked; is_hidden: by a boolean mask.
template <class W>
OG_FUNCTION og_t og_score(const W& a, const og_masks& masks, og_i64 row, og_i64 column, og_t x,
                          bool& is_hidden) {
  x = x * (og_t)a.real(13);
  is_hidden = false;
  for (int m = 0; m < masks.count; ++m) {
    const int w = 57 + 11 * m;
    const og_i64 at = masks.at[m] + row * a.integer(w + 9) + column * a.integer(w + 10);
    if (a.integer(w + 1) == 0) {
      x = x + (og_t)og_get(a.template pointer<const og_m>(w)[at]);
    } else if ((a.template pointer<const og_u8>(w)[at] != 0) != (a.integer(w + 1) == 1)) {
      x = (og_t)a.real(w + 2);
      is_hidden = true;
    }
  }
  return x;
}

// The factor of a probability after the dropout.
template <class W>
OG_FUNCTION og_t og_kept(const W& a, og_i64 head, og_i64 row, og_i64 column) {
  const og_u64 at = (og_u64)((head * a.integer(7) + row) * a.integer(8) + column);
  return og_block(a, 17, at / 4).word[at % 4] >= (og_u64)a.integer(15) ? (og_t)a.real(16) : (og_t)0;
}
)";

constexpr const char* kForward = R"(
OG_KERNEL(og_attention, 90) {
  OG_SHARED og_t q[og_rows * og_line];
  OG_SHARED og_t kv[og_keys * og_line];
  OG_SHARED og_t scores[og_rows * (og_keys + 1)];
  OG_SHARED og_t parts[256];
  OG_SHARED og_t most[og_rows];
  OG_SHARED og_t total[og_rows];
  OG_SHARED og_t factor[og_rows];
  enum { og_threads = 256 / og_rows, og_i = og_rows / 16, og_j = og_keys / 16, og_e = og_size / 16 };
  const og_i64 queries = a.integer(7);
  const og_i64 blocks = (queries + og_rows - 1) / og_rows;
  const og_t nothing = -(og_t)og_bits<float>(0x7f800000u);
  const int own_row = threadIdx.x / 16, own_column = threadIdx.x % 16;
  const int row = threadIdx.x / og_threads, part = threadIdx.x % og_threads;
  og_t* const line = scores + row * (og_keys + 1);
  for (og_i64 b = blockIdx.x; b < a.integer(5) * blocks; b += gridDim.x) {
    const og_i64 head = b / blocks, first = b % blocks * og_rows;
    const og_i64 key_head = head / a.integer(6);
    const og_i64 end = first + og_rows < queries ? first + og_rows : queries;
    const og_i64 seen = og_seen(a, end);
    const og_masks masks = og_masks_of(a, head);
    const og_k* const k = a.pointer<const og_k>(1) + og_head(a, 33, key_head);
    const og_v* const v = a.pointer<const og_v>(2) + og_head(a, 41, key_head);
    og_load<og_rows>(q, a, a.pointer<const og_q>(0) + og_head(a, 25, head), 25, first, queries,
                     a.integer(9));
    if (part == 0) {
      most[row] = nothing;
      total[row] = 0;
    }
    og_t sums[og_i][og_e];
    for (int i = 0; i < og_i; ++i) {
      for (int e = 0; e < og_e; ++e) sums[i][e] = 0;
    }
    for (og_i64 key = 0; key < seen; key += og_keys) {
      og_load<og_keys>(kv, a, k, 33, key, seen, a.integer(9));
      __syncthreads();
      og_t x[og_i][og_j];
      for (int i = 0; i < og_i; ++i) {
        for (int j = 0; j < og_j; ++j) x[i][j] = 0;
      }
      for (int d = 0; d < og_size; ++d) {
        for (int i = 0; i < og_i; ++i) {
          const og_t of_q = q[(own_row + 16 * i) * og_line + d];
          for (int j = 0; j < og_j; ++j) {
            x[i][j] = og_fma(of_q, kv[(own_column + 16 * j) * og_line + d], x[i][j]);
          }
        }
      }
      for (int i = 0; i < og_i; ++i) {
        const og_i64 at = first + own_row + 16 * i;
        const og_i64 own = at < queries ? og_seen(a, at + 1) : 0;
        for (int j = 0; j < og_j; ++j) {
          const int column = own_column + 16 * j;
          bool is_hidden;
          scores[(own_row + 16 * i) * (og_keys + 1) + column] =
              key + column < own ? og_score(a, masks, at, key + column, x[i][j], is_hidden)
                                 : nothing;
        }
      }
      __syncthreads();
      og_t largest = nothing;
      for (int c = part; c < og_keys; c += og_threads) largest = og_max(largest, line[c]);
      parts[threadIdx.x] = largest;
      __syncthreads();
      largest = most[row];
      for (int i = 0; i < og_threads; ++i) largest = og_max(largest, parts[row * og_threads + i]);
      og_t sum = 0;
      for (int c = part; c < og_keys; c += og_threads) {
        og_t p = largest == nothing ? (og_t)0 : og_exp(line[c] - largest);
        sum = sum + p;
        if (a.integer(15) != 0) p = p * og_kept(a, head, first + row, key + c);
        line[c] = p;
      }
      __syncthreads();
      parts[threadIdx.x] = sum;
      if (part == 0) {
        factor[row] = most[row] == largest ? (og_t)1 : og_exp(most[row] - largest);
        most[row] = largest;
      }
      og_load<og_keys>(kv, a, v, 41, key, seen, a.integer(10));
      __syncthreads();
      if (part == 0) {
        og_t all = 0;
        for (int i = 0; i < og_threads; ++i) all = all + parts[threadIdx.x + i];
        total[row] = total[row] * factor[row] + all;
      }
      for (int i = 0; i < og_i; ++i) {
        for (int e = 0; e < og_e; ++e) sums[i][e] = sums[i][e] * factor[own_row + 16 * i];
      }
      for (int c = 0; c < og_keys; ++c) {
        for (int i = 0; i < og_i; ++i) {
          const og_t p = scores[(own_row + 16 * i) * (og_keys + 1) + c];
          for (int e = 0; e < og_e; ++e) {
            sums[i][e] = og_fma(p, kv[c * og_line + own_column + 16 * e], sums[i][e]);
          }
        }
      }
      __syncthreads();
    }
    __syncthreads();
    og_t* const y = a.pointer<og_t>(3) + og_head(a, 49, head);
    for (int i = 0; i < og_i; ++i) {
      const og_i64 at = first + own_row + 16 * i;
      const og_t inverse = (og_t)1 / total[own_row + 16 * i];
      for (int e = 0; e < og_e; ++e) {
        const int column = own_column + 16 * e;
        if (at >= queries || column >= a.integer(10)) continue;
        y[at * a.integer(55) + column * a.integer(56)] = sums[i][e] * inverse;
      }
    }
    if (part == 0 && first + row < queries && a.pointer<og_t>(4) != 0) {
      og_t* const kept = a.pointer<og_t>(4) + 2 * (head * queries + first + row);
      kept[0] = most[row];
      kept[1] = total[row] == 0 ? (og_t)og_bits<float>(0x7fc00000u) : (og_t)1 / total[row];
    }
    __syncthreads();
  }
}
)";

constexpr const char* kPair = R"(
enum { og_n = og_tile / 16, og_e = og_size / 16, og_threads = 256 / og_tile };

// Tiles of a pair of queries and keys, and numbers of its rows.
struct og_pair {
  og_t q[og_tile * og_line];
  og_t k[og_tile * og_line];
  og_t v[og_tile * og_line];
  og_t dy[og_tile * og_line];
  og_t p[og_tile * (og_tile + 1)];
  og_t ds[og_tile * (og_tile + 1)];
  og_t parts[256];
  og_t largest[og_tile];
  og_t inverse[og_tile];
  og_t along[og_tile];
};

template <class W>
OG_FUNCTION void og_load_keys(og_pair& s, const W& a, og_i64 key_head, og_i64 key) {
  og_load<og_tile>(s.k, a, a.template pointer<const og_k>(1) + og_head(a, 33, key_head), 33, key,
                   a.integer(8), a.integer(9));
  og_load<og_tile>(s.v, a, a.template pointer<const og_v>(2) + og_head(a, 41, key_head), 41, key,
                   a.integer(8), a.integer(10));
}

// And, for each row, its statistics and sum(dy y). An inverse that is no number is kept if the loss
// depends on the row, else it is -1.
template <class W>
OG_FUNCTION void og_load_queries(og_pair& s, const W& a, og_i64 head, og_i64 first) {
  const og_i64 queries = a.integer(7), size = a.integer(10);
  og_load<og_tile>(s.q, a, a.template pointer<const og_q>(0) + og_head(a, 25, head), 25, first,
                   queries, a.integer(9));
  og_load<og_tile>(s.dy, a, a.template pointer<const og_dy>(90) + og_head(a, 95, head), 95, first,
                   queries, size);
  __syncthreads();
  const int row = threadIdx.x / og_threads, part = threadIdx.x % og_threads;
  const og_i64 at = first + row;
  const og_y* const y =
      a.template pointer<const og_y>(3) + og_head(a, 49, head) + at * a.integer(55);
  og_t sum = 0;
  for (og_i64 e = part; at < queries && e < size; e += og_threads) {
    sum = og_fma(s.dy[row * og_line + e], (og_t)og_get(y[e * a.integer(56)]), sum);
  }
  s.parts[threadIdx.x] = sum;
  __syncthreads();
  if (part == 0) {
    sum = 0;
    for (int i = 0; i < og_threads; ++i) sum = sum + s.parts[threadIdx.x + i];
    s.along[row] = sum;
    const og_t* const kept =
        a.template pointer<const og_t>(4) + 2 * (head * queries + (at < queries ? at : 0));
    s.largest[row] = kept[0];
    og_t inverse = kept[1];
    if (inverse != inverse) {
      bool is_used = false;
      for (og_i64 e = 0; e < size; ++e) is_used = is_used || s.dy[row * og_line + e] != 0;
      if (!is_used) inverse = -1;
    }
    s.inverse[row] = inverse;
  }
  __syncthreads();
}

// Probabilities, after the dropout, and gradients of masked scores; a query sees none of the keys
// from og_seen() on.
template <class W>
OG_FUNCTION void og_scores(og_pair& s, const W& a, const og_masks& masks, og_i64 head, og_i64 first,
                           og_i64 key) {
  const int own_row = threadIdx.x / 16, own_column = threadIdx.x % 16;
  og_t x[og_n][og_n], dp[og_n][og_n];
  for (int i = 0; i < og_n; ++i) {
    for (int j = 0; j < og_n; ++j) x[i][j] = dp[i][j] = 0;
  }
  for (int d = 0; d < og_size; ++d) {
    for (int i = 0; i < og_n; ++i) {
      const og_t q = s.q[(own_row + 16 * i) * og_line + d];
      const og_t dy = s.dy[(own_row + 16 * i) * og_line + d];
      for (int j = 0; j < og_n; ++j) {
        x[i][j] = og_fma(q, s.k[(own_column + 16 * j) * og_line + d], x[i][j]);
        dp[i][j] = og_fma(dy, s.v[(own_column + 16 * j) * og_line + d], dp[i][j]);
      }
    }
  }
  for (int i = 0; i < og_n; ++i) {
    const int row = own_row + 16 * i;
    const og_i64 at = first + row;
    const og_i64 own = at < a.integer(7) ? og_seen(a, at + 1) : 0;
    const og_t inverse = s.inverse[row];
    for (int j = 0; j < og_n; ++j) {
      const int column = own_column + 16 * j;
      og_t p = 0, ds = 0;
      if (key + column < own) {
        bool is_hidden;
        const og_t score = og_score(a, masks, at, key + column, x[i][j], is_hidden);
        if (inverse != inverse) {
          p = inverse;
          ds = is_hidden ? (og_t)0 : inverse;
        } else if (inverse >= 0) {
          p = og_exp(score - s.largest[row]) * inverse;
          const og_t kept =
              a.integer(15) == 0 ? (og_t)1 : og_kept(a, head, at, key + column);
          ds = p * (dp[i][j] * kept - s.along[row]);
          p = p * kept;
        }
      }
      s.p[row * (og_tile + 1) + column] = p;
      s.ds[row * (og_tile + 1) + column] = ds;
    }
  }
  __syncthreads();
}

// sums[i][e] += column i of scores [og_tile, og_tile], or row, times column e of a tile.
template <bool is_row>
OG_FUNCTION void og_add(og_t (&sums)[og_n][og_e], const og_t* scores, const og_t* tile) {
  const int own_row = threadIdx.x / 16, own_column = threadIdx.x % 16;
  og_t more[og_n][og_e];
  for (int i = 0; i < og_n; ++i) {
    for (int e = 0; e < og_e; ++e) more[i][e] = 0;
  }
  for (int c = 0; c < og_tile; ++c) {
    for (int i = 0; i < og_n; ++i) {
      const int line = own_row + 16 * i;
      const og_t score = scores[is_row ? line * (og_tile + 1) + c : c * (og_tile + 1) + line];
      for (int e = 0; e < og_e; ++e) {
        more[i][e] = og_fma(score, tile[c * og_line + own_column + 16 * e], more[i][e]);
      }
    }
  }
  for (int i = 0; i < og_n; ++i) {
    for (int e = 0; e < og_e; ++e) sums[i][e] = sums[i][e] + more[i][e];
  }
}

template <class W>
OG_FUNCTION void og_store(const W& a, og_t* to, int view, og_i64 first, og_i64 rows, og_i64 columns,
                          const og_t (&sums)[og_n][og_e], og_t factor) {
  for (int i = 0; i < og_n; ++i) {
    const og_i64 row = first + threadIdx.x / 16 + 16 * i;
    for (int e = 0; e < og_e; ++e) {
      const int column = (int)(threadIdx.x % 16) + 16 * e;
      if (row >= rows || column >= columns) continue;
      to[row * a.integer(view + 6) + column * a.integer(view + 7)] = sums[i][e] * factor;
    }
  }
}

OG_FUNCTION void og_clear(og_t (&sums)[og_n][og_e]) {
  for (int i = 0; i < og_n; ++i) {
    for (int e = 0; e < og_e; ++e) sums[i][e] = 0;
  }
}
)";

constexpr const char* kGradient = R"(
OG_KERNEL(og_keys_back, 127) {
  OG_SHARED og_pair s;
  const og_i64 groups = a.integer(6), queries = a.integer(7), keys = a.integer(8);
  const og_i64 blocks = (keys + og_tile - 1) / og_tile;
  for (og_i64 b = blockIdx.x; b < a.integer(5) / groups * blocks; b += gridDim.x) {
    const og_i64 key_head = b / blocks, key = b % blocks * og_tile;
    og_load_keys(s, a, key_head, key);
    og_t dk[og_n][og_e], dv[og_n][og_e];
    og_clear(dk);
    og_clear(dv);
    for (og_i64 head = key_head * groups; head < (key_head + 1) * groups; ++head) {
      const og_masks masks = og_masks_of(a, head);
      for (og_i64 first = 0; first < queries; first += og_tile) {
        const og_i64 end = first + og_tile < queries ? first + og_tile : queries;
        if (og_seen(a, end) <= key) continue;
        og_load_queries(s, a, head, first);
        og_scores(s, a, masks, head, first, key);
        og_add<false>(dv, s.p, s.dy);
        og_add<false>(dk, s.ds, s.q);
        __syncthreads();
      }
    }
    if (a.pointer<og_t>(92) != 0) {
      og_store(a, a.pointer<og_t>(92) + og_head(a, 111, key_head), 111, key, keys, a.integer(9), dk,
               (og_t)a.real(13));
    }
    if (a.pointer<og_t>(93) != 0) {
      og_store(a, a.pointer<og_t>(93) + og_head(a, 119, key_head), 119, key, keys, a.integer(10),
               dv, (og_t)1);
    }
    __syncthreads();
  }
}

OG_KERNEL(og_queries_back, 127) {
  OG_SHARED og_pair s;
  const og_i64 queries = a.integer(7), keys = a.integer(8);
  const og_i64 blocks = (queries + og_tile - 1) / og_tile;
  og_t* const dscore = a.pointer<og_t>(94);
  for (og_i64 b = blockIdx.x; b < a.integer(5) * blocks; b += gridDim.x) {
    const og_i64 head = b / blocks, first = b % blocks * og_tile;
    const og_i64 end = first + og_tile < queries ? first + og_tile : queries;
    const og_masks masks = og_masks_of(a, head);
    og_load_queries(s, a, head, first);
    og_t dq[og_n][og_e];
    og_clear(dq);
    const og_i64 seen = dscore != 0 ? keys : og_seen(a, end);  // zeros are stored too
    for (og_i64 key = 0; key < seen; key += og_tile) {
      og_load_keys(s, a, head / a.integer(6), key);
      __syncthreads();
      og_scores(s, a, masks, head, first, key);
      og_add<true>(dq, s.ds, s.k);
      for (int i = threadIdx.x; dscore != 0 && i < og_tile * og_tile; i += 256) {
        const og_i64 row = first + i / og_tile, column = key + i % og_tile;
        if (row >= queries || column >= keys) continue;
        dscore[(head * queries + row) * keys + column] =
            s.ds[i / og_tile * (og_tile + 1) + i % og_tile];
      }
      __syncthreads();
    }
    if (a.pointer<og_t>(91) != 0) {
      og_store(a, a.pointer<og_t>(91) + og_head(a, 103, head), 103, first, queries, a.integer(9),
               dq, (og_t)a.real(13));
    }
    __syncthreads();
  }
}
)";

}  // namespace

std::string attention_text() { return random_text() + kCommon + kForward; }

std::string attention_gradient_text() { return random_text() + kCommon + kPair + kGradient; }

}  // namespace onnxgrad::ops
