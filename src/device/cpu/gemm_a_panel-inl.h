// GEMM tiles that read a packed A panel, as high as the tile, and a packed B panel, as wide as the
// tile, for all instruction sets.
#if defined(ONNXGRAD_DEVICE_CPU_GEMM_A_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNXGRAD_DEVICE_CPU_GEMM_A_PANEL_INL_H_
#undef ONNXGRAD_DEVICE_CPU_GEMM_A_PANEL_INL_H_
#else
#define ONNXGRAD_DEVICE_CPU_GEMM_A_PANEL_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>

#include "device/cpu/gemm_tile.h"
#include "device/cpu/gemm_tile_end-inl.h"
#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::device::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// A tile whose steps read packed A and B panels at constant offsets, so that a step takes no more
/// instructions than its loads and multiply-adds: faster where hyper-threads share a core. Operands
/// needed later are prefetched a little with every few steps, since loads of B would wait for many
/// prefetches at once.
template <class D, int kRows, int kVectors, GemmPackedA kA>
class APanelTile {
  using T = hn::TFromD<D>;
  using V = hn::Vec<D>;

 public:
  static void run(const GemmTile<T>& tile) { APanelTile(tile).multiply(); }

 private:
  using Sums = V[kRows][kVectors];

  static constexpr std::ptrdiff_t kLanes = hn::MaxLanes(D());
  // Number of unrolled steps. All kGemmChunk would be 2 to 5 KiB of instructions, whose time
  // depends on where the linker places them.
  static constexpr int kUnrolled = kRows * kVectors > 16 ? 4 : 8;
  static constexpr bool kHasChunks = kA == GemmPackedA::kRowAPanel;
  static constexpr std::ptrdiff_t kChunk = kGemmChunk * kRows;

  HWY_INLINE explicit APanelTile(const GemmTile<T>& tile) : tile_(tile), a_(tile.a) {}

  HWY_INLINE void multiply() {
    const TileEnd<D, kRows, kVectors> end{hn::FirstN(D(), static_cast<std::size_t>(tile_.tail)),
                                          tile_.tail};
    const std::int64_t chunks = (tile_.steps + kGemmChunk - 1) / kGemmChunk;
    Prefetch<T> prefetch(tile_, chunks);
    // Rows of C that are prefetched with each chunk of steps.
    const std::int64_t rows = (kRows + chunks - 1) / std::max<std::int64_t>(chunks, 1);
    for (std::int64_t block = 0; block < tile_.blocks; ++block) {
      Sums sum;
      unrolled<kRows>([&](auto i) ONNXGRAD_INLINE_LAMBDA {
        unrolled<kVectors>([&](auto v) ONNXGRAD_INLINE_LAMBDA { sum[i][v] = hn::Zero(D()); });
      });
      a_ = tile_.a + block * tile_.a_block;
      b_ = tile_.b;
      std::int64_t row = 0;
      for (std::int64_t left = tile_.steps; left > 0; left -= kGemmChunk) {
        if (tile_.extras != nullptr) {
          prefetch.fetch_part();
          for (const std::int64_t end = std::min<std::int64_t>(row + rows, kRows); row < end;
               ++row) {
            prefetch_row<kVectors, kLanes>(tile_, block * kRows + row);
          }
        }
        add_chunk(sum, left);
      }
      end.finish(sum, tile_, block * kRows);
    }
  }

  /// Adds kGemmChunk steps, or the `left` ones of the last, to the sums.
  HWY_INLINE void add_chunk(Sums& sum, std::int64_t left) {
    const T* chunk = a_;
    std::int64_t count = std::min<std::int64_t>(left, kGemmChunk);
    keep_in_register(count);  // the compiler must not unroll the loop for small counts
    add_steps(sum, count);
    if constexpr (kHasChunks) a_ = chunk + kChunk;
  }

  HWY_INLINE void add_steps(Sums& sum, std::int64_t steps) {
    for (; steps >= kUnrolled; steps -= kUnrolled) add<kUnrolled>(sum);
    for (; steps > 0; --steps) add<1>(sum);
  }

  template <int kSteps>
  HWY_INLINE void add(Sums& sum) {
    constexpr std::ptrdiff_t kStep = kHasChunks ? 1 : kRows;
    constexpr std::ptrdiff_t kRow = kHasChunks ? kGemmChunk : 1;
    const D d;
    unrolled<kSteps>([&](auto s) ONNXGRAD_INLINE_LAMBDA {
      V row[kVectors];
      unrolled<kVectors>([&](auto v) ONNXGRAD_INLINE_LAMBDA {
        row[v] = hn::LoadU(d, b_ + (s * kVectors + v) * kLanes);
      });
      unrolled<kRows>([&](auto i) ONNXGRAD_INLINE_LAMBDA {
        const V factor = hn::Set(d, a_[s * kStep + i * kRow]);
        needed_until_here(factor);
        unrolled<kVectors>([&](auto v) ONNXGRAD_INLINE_LAMBDA {
          sum[i][v] = hn::MulAdd(factor, row[v], sum[i][v]);
        });
        needed_until_here(factor);
      });
      unrolled<kVectors>([&](auto v) ONNXGRAD_INLINE_LAMBDA { needed_until_here(row[v]); });
      keep_in_register(a_);  // loads stay in their step
      keep_in_register(b_);
    });
    a_ += kSteps * kStep;
    b_ += std::ptrdiff_t{kSteps} * kVectors * kLanes;
    keep_in_register(a_);
    keep_in_register(b_);
  }

  const GemmTile<T>& tile_;
  const T* a_;
  const T* b_ = nullptr;
};

}  // namespace onnxgrad::device::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
