// Tiles of matrix products whose A is a strip, as high as the tile, and whose B is a packed panel,
// for all instruction sets.
#if defined(ONNXGRAD_DEVICE_CPU_GEMM_STRIP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNXGRAD_DEVICE_CPU_GEMM_STRIP_INL_H_
#undef ONNXGRAD_DEVICE_CPU_GEMM_STRIP_INL_H_
#else
#define ONNXGRAD_DEVICE_CPU_GEMM_STRIP_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "device/cpu/gemm_tile.h"
#include "device/cpu/gemm_tile_end-inl.h"
#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::device::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// A tile whose steps read, at constant places, a strip of A and a panel of B, so that they take no
/// more instructions than their loads and multiply-adds. A hyper-thread, whose core another one
/// uses too, is 15 % faster with it. What will be needed is fetched a little with every few steps:
/// all at once, the loads of B would wait for it.
///
/// kA and kPacksB: A, or B, is in place, and becomes a strip, or a panel, while the tile
/// multiplies: the copies run beside the multiply-adds.
template <class D, int kRows, int kVectors, GemmStripA kA, bool kPacksB>
class StripTile {
  using T = hn::TFromD<D>;
  using V = hn::Vec<D>;

 public:
  static void run(const GemmTile<T>& tile) { StripTile(tile).multiply(); }

 private:
  using Sums = V[kRows][kVectors];

  static constexpr std::ptrdiff_t kLanes = hn::MaxLanes(D());
  // Steps that are written out. 16, a whole chunk, are 2 to 5 KiB of instructions, which took 17 %
  // longer or no longer depending on where the linker had placed them (Xeon, AVX-512).
  static constexpr int kUnrolled = kRows * kVectors > 16 ? 4 : 8;
  static constexpr bool kHasChunks = kA == GemmStripA::kRowStrip || kA == GemmStripA::kRows;
  static constexpr std::ptrdiff_t kChunk = kGemmChunk * kRows;
  static constexpr std::ptrdiff_t kAhead = 12;  // steps in place: a line from L2 needs two
  static constexpr int kRowVectors = (kRows + kLanes - 1) / kLanes;  // of a step in place

  HWY_INLINE explicit StripTile(const GemmTile<T>& tile)
      : tile_(tile),
        a_(kA == GemmStripA::kRows ? tile.extras->packed_a : tile.a),
        touched_(tile, tile.steps / kUnrolled) {
    if constexpr (kA == GemmStripA::kSteps) to_ = tile.extras->packed_a;
  }

  HWY_INLINE void multiply() {
    const TileEnd<D, kRows, kVectors> end{hn::FirstN(D(), static_cast<std::size_t>(tile_.tail)),
                                          tile_.tail};
    Ahead<T> ahead(tile_, (tile_.steps + kGemmChunk - 1) / kGemmChunk);
    for (std::int64_t block = 0; block < tile_.blocks; ++block) {
      Sums sum;
      unrolled<kRows>([&](auto i) ONNXGRAD_INLINE_LAMBDA {
        unrolled<kVectors>([&](auto v) ONNXGRAD_INLINE_LAMBDA { sum[i][v] = hn::Zero(D()); });
      });
      begin(block);
      touched_.begin(tile_, block * kRows);
      for (std::int64_t left = tile_.steps; left > 0; left -= kGemmChunk) {
        if (tile_.extras != nullptr) ahead.fetch_part();
        add_chunk(sum, left);
      }
      end.finish(sum, tile_, block * kRows);
    }
  }

  /// Finds the operands of a block.
  HWY_INLINE void begin(std::int64_t block) {
    b_ = tile_.b;
    if constexpr (kPacksB) panel_ = tile_.extras->packed_b;
    begin_a(tile_.a + block * tile_.a_block);
  }

  HWY_INLINE void begin_a(const T* a) {
    if constexpr (kA == GemmStripA::kRows) {
      from_ = a;
      pack_chunk(a_, std::min<std::int64_t>(tile_.steps, kGemmChunk));
    } else {
      a_ = a;
    }
  }

  /// Adds a chunk of products, or the `left` ones of the last.
  HWY_INLINE void add_chunk(Sums& sum, std::int64_t left) {
    if constexpr (kA == GemmStripA::kRows) {
      // The next one: no multiply-add waits for what has just been stored.
      const std::int64_t next = left - kGemmChunk;
      if (next > 0) pack_chunk(a_ + kChunk, std::min<std::int64_t>(next, kGemmChunk));
      keep_in_register(left);  // what follows is not written out for both cases
    }
    const T* chunk = a_;
    std::int64_t count = std::min<std::int64_t>(left, kGemmChunk);
    keep_in_register(count);  // that there are few is no reason to write the loop out
    add_steps(sum, count);
    if constexpr (kHasChunks) a_ = chunk + kChunk;
  }

  HWY_INLINE void add_steps(Sums& sum, std::int64_t steps) {
    for (; steps >= kUnrolled; steps -= kUnrolled) {
      touched_.fetch_part();
      add<kUnrolled>(sum);
    }
    for (; steps > 0; --steps) add<1>(sum);
  }

  template <int kSteps>
  HWY_INLINE void add(Sums& sum) {
    constexpr std::ptrdiff_t kStep = kA == GemmStripA::kStepStrip ? kRows : kHasChunks ? 1 : 0;
    constexpr std::ptrdiff_t kRow = kHasChunks ? kGemmChunk : 1;
    const D d;
    unrolled<kSteps>([&](auto s) ONNXGRAD_INLINE_LAMBDA {
      V row[kVectors];
      unrolled<kVectors>([&](auto v) ONNXGRAD_INLINE_LAMBDA {
        row[v] = hn::LoadU(d, b_ + (kPacksB ? v : s * kVectors + v) * kLanes);
      });
      if constexpr (kPacksB) pack_row(row, s);
      if constexpr (kA == GemmStripA::kSteps) pack_step(s);
      unrolled<kRows>([&](auto i) ONNXGRAD_INLINE_LAMBDA {
        const V factor = hn::Set(d, a_[s * kStep + i * kRow]);
        needed_until_here(factor);
        unrolled<kVectors>([&](auto v) ONNXGRAD_INLINE_LAMBDA {
          sum[i][v] = hn::MulAdd(factor, row[v], sum[i][v]);
        });
        needed_until_here(factor);
      });
      unrolled<kVectors>([&](auto v) ONNXGRAD_INLINE_LAMBDA { needed_until_here(row[v]); });
      if constexpr (kA == GemmStripA::kSteps) a_ += tile_.a_step;
      if constexpr (kPacksB) b_ += tile_.b_step;
      keep_in_register(a_);  // loads stay in their step
      keep_in_register(b_);
    });
    if constexpr (kA != GemmStripA::kSteps) a_ += kSteps * kStep;
    if constexpr (kA == GemmStripA::kSteps) to_ += kSteps * kRows;
    if constexpr (kPacksB) panel_ += kSteps * kVectors * kLanes;
    if constexpr (!kPacksB) b_ += kSteps * kVectors * kLanes;
    keep_in_register(a_);
    keep_in_register(b_);
  }

  /// Step s of B to the panel.
  HWY_INLINE void pack_row(const V (&row)[kVectors], std::ptrdiff_t s) {
    unrolled<kVectors>([&](auto v) ONNXGRAD_INLINE_LAMBDA {
      hn::StoreU(row[v], D(), panel_ + (s * kVectors + v) * kLanes);
      __builtin_prefetch(b_ + kAhead * tile_.b_step + v * kLanes);
    });
    // A row that begins within a line ends in another.
    __builtin_prefetch(b_ + kAhead * tile_.b_step + kVectors * kLanes - 1);
  }

  /// Step s of A to the strip.
  HWY_INLINE void pack_step(std::ptrdiff_t s) {
    const D d;
    const auto last_rows = hn::FirstN(d, kRows - (kRowVectors - 1) * kLanes);
    unrolled<kRowVectors>([&](auto v) ONNXGRAD_INLINE_LAMBDA {
      const T* from = a_ + v * kLanes;
      T* to = to_ + s * kRows + v * kLanes;
      if constexpr (v + 1 < kRowVectors) {
        hn::StoreU(hn::LoadU(d, from), d, to);
      } else {
        hn::BlendedStore(hn::MaskedLoad(last_rows, d, from), last_rows, d, to);
      }
    });
    __builtin_prefetch(a_ + kAhead * tile_.a_step);
  }

  /// The next `steps` of A's rows to the chunk at `chunk`.
  HWY_INLINE void pack_chunk(const T* chunk, std::int64_t steps) {
    constexpr int kChunkVectors = kGemmChunk / kLanes;
    const D d;
    T* to = const_cast<T*>(chunk);  // within packed_a
    const T* from = from_;
    std::ptrdiff_t a_row = tile_.a_row;
    keep_in_register(to);
    keep_in_register(a_row);
    if (steps == kGemmChunk) {
      unrolled<kRows>([&](auto i) ONNXGRAD_INLINE_LAMBDA {
        unrolled<kChunkVectors>([&](auto v) ONNXGRAD_INLINE_LAMBDA {
          hn::StoreU(hn::LoadU(d, from + v * kLanes), d, to + i * kGemmChunk + v * kLanes);
          __builtin_prefetch(from + kGemmChunk + v * kLanes);
        });
        from += a_row;
        keep_in_register(from);
      });
    } else {
      for (std::ptrdiff_t i = 0; i < kRows; ++i) {
        for (std::int64_t at = 0; at < steps; at += kLanes) {
          const auto mask = hn::FirstN(d, static_cast<std::size_t>(steps - at));
          hn::StoreU(hn::MaskedLoad(mask, d, from + at), d, to + i * kGemmChunk + at);
        }
        from += a_row;
      }
    }
    from_ += kGemmChunk;
    keep_in_register(from_);
  }

  const GemmTile<T>& tile_;
  const T* a_;               // in place, transposed, or of the strip
  const T* b_ = nullptr;     // in place, or of the panel
  const T* from_ = nullptr;  // A's rows in place, from the chunk on that is packed next
  T* to_ = nullptr;          // where steps of A go
  T* panel_ = nullptr;       // where steps of B go
  Touched<T, kRows, kVectors * kLanes> touched_;
};

}  // namespace onnxgrad::device::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
