// Times the weight gradients of the large workloads with and without their updates and prints a
// Markdown table, in GFLOP/s of the product (medians). All columns take turns.
//
//   onnxgrad_update_table [threads, default 1] [part of a name] [MB of a ring, default 300]
//                         [seconds per product and column, default 1]
//
// Each product takes the next operands, weight and slots of a ring, which come from beyond the L2
// cache, as in a step. "stored": the gradient is written to memory. "consumed": its parts are
// complete in the cache and nobody reads them. "SGD", "Adam": each part updates its part of the
// weight. "stored, then Adam": by two kernels.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/memory_budget.h"
#include "device/cpu/gemm.h"
#include "device/cpu/threads.h"
#include "device/cpu/update.h"
#include "operand_ring.h"

namespace {

using onnxgrad::device::GemmBlock;
using onnxgrad::device::GemmOperands;
using onnxgrad::device::UpdateArrays;
using onnxgrad::device::UpdateFn;
using onnxgrad::device::WeightUpdate;
using Ring = onnxgrad::benchmarks::OperandRing<float>;

struct Shape {
  std::int64_t m, n, k;
};

constexpr Shape kShapes[] = {
    // w3_mlp784
    {784, 512, 128},
    {512, 512, 128},
    // w6_bert_tiny
    {128, 128, 2048},
    {128, 512, 2048},
    {512, 128, 2048},
    // w6_bert_base_layer
    {768, 768, 1024},
    {768, 3072, 1024},
    {3072, 768, 1024},
    // w7_causal_lm
    {256, 256, 1024},
    {256, 1024, 1024},
    {1024, 256, 1024},
    {256, 8192, 1024},
};

enum class Way : std::uint8_t { kStored, kConsumed, kDescent, kAdam, kStoredThenAdam };

constexpr Way kWays[] = {Way::kStored, Way::kConsumed, Way::kDescent, Way::kAdam,
                         Way::kStoredThenAdam};

WeightUpdate adam() {
  return {.rule = onnxgrad::device::UpdateRule::kAdam,
          .beta1 = 0.9,
          .share1 = 0.1,
          .beta2 = 0.999,
          .share2 = 0.001};
}

/// An update of a matrix by parts of its gradient.
struct PartUpdate {
  UpdateFn<float> update = nullptr;
  WeightUpdate spec;
  UpdateArrays<float> arrays;
  std::int64_t columns = 0;

  void part(const GemmBlock& block) const {
    update(spec, arrays.with({.gradient = static_cast<const float*>(block.c),
                              .gradient_row = block.c_row,
                              .first = block.row * columns + block.column,
                              .rows = block.rows,
                              .columns = block.columns,
                              .row = columns}));
  }
};

/// One gradient in one way.
class Gradient {
 public:
  Gradient(const Shape& shape, Way way, int threads)
      : shape_(shape), way_(way), threads_(threads), is_consumed_(way_has_consumer(way)) {
    gemm_ = onnxgrad::device::prepare_gemm({.m = shape.m,
                                            .n = shape.n,
                                            .k = shape.k,
                                            .transpose_a = true,
                                            .threads = threads,
                                            .has_consumer = is_consumed_});
    scratch_ = onnxgrad::base::allocate_aligned(gemm_.scratch_bytes);
    update_ = way == Way::kDescent
                  ? onnxgrad::device::find_descent<float>(onnxgrad::device::best_isa())
                  : onnxgrad::device::find_update<float>(onnxgrad::device::best_isa(), adam());
  }

  /// Seconds of one, with a set of the ring: A, B, w, m, v and the stored gradient.
  double time(Ring& ring) {
    float* const* set = ring.next();
    const auto start = std::chrono::steady_clock::now();
    if (is_consumed_) {
      consume(set);
    } else {
      gemm_({.a = set[0], .b = set[1], .c = set[5], .scratch = scratch_.get()});
      if (way_ == Way::kStoredThenAdam) update_all(set);
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  static bool way_has_consumer(Way way) {
    return way == Way::kConsumed || way == Way::kDescent || way == Way::kAdam;
  }

  UpdateArrays<float> arrays(float* const* set) const {
    return {.w = set[2],
            .m = set[3],
            .v = set[4],
            .new_w = set[2],
            .new_m = set[3],
            .new_v = set[4],
            .rate = 1e-6F,
            .epsilon = 1e-8F};
  }

  void consume(float* const* set) const {
    const PartUpdate update{update_, adam(), arrays(set), shape_.n};
    const bool updates = way_ != Way::kConsumed;
    GemmOperands operands{.a = set[0],
                          .b = set[1],
                          .scratch = scratch_.get(),
                          .finished = updates ? update_part : ignore_part,
                          .context = &update};
    if (updates) operands.reads_next[0] = set[2];
    if (way_ == Way::kAdam) operands.reads_next = {set[2], set[3], set[4]};
    gemm_(operands);
  }

  void update_all(float* const* set) const {
    UpdateArrays<float> all = arrays(set);
    all.gradient = set[5];
    onnxgrad::device::parallel_ranges(threads_, shape_.m * shape_.n,
                                      [&](std::int64_t first, std::int64_t last) {
                                        update_(adam(), all.from(first, last - first));
                                      });
  }

  static void update_part(const void* context, const GemmBlock& block) {
    static_cast<const PartUpdate*>(context)->part(block);
  }
  static void ignore_part(const void* /*context*/, const GemmBlock& /*block*/) {}

  Shape shape_;
  Way way_;
  int threads_;
  bool is_consumed_;
  UpdateFn<float> update_ = nullptr;
  onnxgrad::device::PreparedGemm gemm_;
  std::shared_ptr<std::byte> scratch_;
};

void print_table(int threads, std::string_view wanted, double ring_bytes, double budget_s) {
  fmt::print("| gradient | stored | consumed | SGD | Adam | stored, then Adam |\n");
  fmt::print("| --- | --- | --- | --- | --- | --- |\n");
  for (const Shape& shape : kShapes) {
    const std::string title = fmt::format("{}x{}x{}", shape.m, shape.n, shape.k);
    if (title.find(wanted) == std::string::npos) continue;
    const double flops =
        2.0 * static_cast<double>(shape.m * shape.n) * static_cast<double>(shape.k);
    const std::int64_t weights = shape.m * shape.n;
    Ring ring({shape.m * shape.k, shape.n * shape.k, weights, weights, weights, weights},
              ring_bytes);
    std::vector<Gradient> gradients;
    for (const Way way : kWays) gradients.emplace_back(shape, way, threads);
    std::array<std::vector<double>, std::size(kWays)> times;
    const auto rounds =
        std::max<std::int64_t>(static_cast<std::int64_t>(budget_s * threads / (flops / 100e9)), 11);
    for (std::int64_t round = 0; round < rounds; ++round) {
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        times[i].push_back(gradients[i].time(ring));
      }
    }
    std::string row = fmt::format("| {} |", title);
    for (std::vector<double>& of_one : times) {
      const auto middle = of_one.begin() + std::ssize(of_one) / 2;
      std::ranges::nth_element(of_one, middle);
      row += fmt::format(" {:.0f} |", flops / *middle * 1e-9);
    }
    fmt::print("{}\n", row);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const std::string_view wanted = argc > 2 ? argv[2] : "";
  const double ring_bytes = (argc > 3 ? std::atof(argv[3]) : 300) * 1e6;
  const double budget_s = argc > 4 ? std::atof(argv[4]) : 1;
  print_table(std::max(threads, 1), wanted, ring_bytes, budget_s);
}
