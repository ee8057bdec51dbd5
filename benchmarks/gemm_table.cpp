// Times every implementation of matrix products and prints a Markdown table: what the numbers in
// src/device/cpu/gemm_cost.cpp are fitted to, and whether they choose well. Implementations take
// turns, so that other load on the machine hits all of them; the least of many times counts. Their
// median, in brackets, has what the others on the machine cost each implementation.
//
//   onnxgrad_gemm_table [seconds per product and implementation, default 0.2] [part of a name]
//                       [path of a BLAS library, or "none"] [MB of a ring] [threads, default 1]
//
// With a ring, each product takes the next operands of so many that they come from beyond the L2
// cache, as in a step; its median counts.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/memory_budget.h"
#include "blas_library.h"
#include "device/cpu/gemm.h"
#include "operand_ring.h"

namespace {

using onnxgrad::device::GemmChoice;
using onnxgrad::device::GemmSpec;
using onnxgrad::device::GemmStart;

struct Shape {
  std::int64_t m, n, k;
  const char* form;  ///< transposes of A and B, "+" for an update of C
};

constexpr Shape kShapes[] = {
    // Steps of small models.
    {10, 1, 2, "NN"},
    {2, 1, 10, "TN+"},
    {10, 1, 100, "NN"},
    {100, 1, 10, "TN+"},
    {15, 50, 100, "NN"},
    {100, 50, 15, "TN+"},
    {15, 10, 50, "NN"},
    {50, 10, 15, "TN+"},
    {15, 50, 10, "NT"},
    {15, 1, 10, "NN"},
    {15, 10, 1, "NT"},
    {32, 32, 32, "NN"},
    {32, 100, 64, "NN"},
    {64, 64, 64, "NN"},
    {64, 64, 64, "NT"},
    // Few rows or columns.
    {1, 64, 100, "NN"},
    {1, 64, 100, "NT"},
    {4, 64, 100, "NT"},
    {8, 512, 512, "NT"},
    {8, 512, 512, "NN"},
    {64, 2, 100, "NN"},
    {64, 4, 100, "NN"},
    {64, 8, 100, "NN"},
    {1000, 2, 20, "TN+"},
    // Between: does packing pay?
    {128, 128, 128, "NN"},
    {128, 128, 128, "NT"},
    {128, 128, 128, "TN+"},
    {32, 256, 256, "NN"},
    {64, 256, 256, "NN"},
    {256, 64, 256, "NN"},
    {256, 256, 64, "NN"},
    {32, 512, 784, "NN"},
    // A layer of 512.
    {128, 512, 784, "NN"},
    {128, 512, 512, "NN"},
    {128, 10, 512, "NN"},
    {784, 512, 128, "TN"},
    {512, 512, 128, "TN"},
    {512, 10, 128, "TN"},
    {128, 512, 512, "NT"},
    {128, 512, 10, "NT"},
    // Layers of 128 with 2048 rows.
    {2048, 128, 128, "NN"},
    {2048, 512, 128, "NN"},
    {2048, 128, 512, "NN"},
    {128, 128, 2048, "TN"},
    {512, 128, 2048, "TN"},
    {128, 512, 2048, "TN"},
    // Large.
    {512, 512, 512, "NN"},
    {512, 768, 768, "NN"},
    {512, 3072, 768, "NN"},
    {512, 768, 3072, "NT"},
    {1024, 1024, 1024, "NN"},
    {1024, 768, 768, "NN"},
    {1024, 3072, 768, "NN"},
    {1024, 768, 3072, "NT"},
    {768, 768, 1024, "TN"},
    {3072, 768, 1024, "TN"},
};

constexpr GemmChoice kChoices[] = {GemmChoice::kTiles,   GemmChoice::kDots,
                                   GemmChoice::kBlocked, GemmChoice::kBlockedPackedA,
                                   GemmChoice::kSplit,   GemmChoice::kBest};

using onnxgrad::benchmarks::BlasLibrary;

template <class T>
using Ring = onnxgrad::benchmarks::OperandRing<T>;

constexpr double kUpdateFactor = -1e-9;

/// One product by one implementation, or by a library.
template <class T>
class Product {
 public:
  Product(const Shape& shape, const BlasLibrary& library) : shape_(shape), library_(&library) {}
  Product(const Shape& shape, GemmChoice choice, int threads) {
    const std::string form = shape.form;
    const bool updates = form.size() > 2;
    gemm_ =
        onnxgrad::device::prepare_gemm({.dtype = onnxgrad::dtype_of<T>(),
                                        .m = shape.m,
                                        .n = shape.n,
                                        .k = shape.k,
                                        .transpose_a = form[0] == 'T',
                                        .transpose_b = form[1] == 'T',
                                        .start = updates ? GemmStart::kMatrix : GemmStart::kZero,
                                        .alpha = updates ? kUpdateFactor : 1,
                                        .threads = threads,
                                        .choice = choice});
    scratch_ = onnxgrad::base::allocate_aligned(gemm_.scratch_bytes);
  }

  /// Seconds of one product, the mean over `count`.
  double time(Ring<T>& ring, std::int64_t count) {
    const auto start = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < count; ++i) {
      T* const* set = ring.next();
      if (library_ != nullptr) {
        multiply_by_library(set[0], set[1], set[2]);
      } else {
        gemm_({.a = set[0], .b = set[1], .start = set[2], .c = set[2], .scratch = scratch_.get()});
      }
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
           static_cast<double>(count);
  }

  std::string name() const {
    if (library_ != nullptr) return "BLAS";
    constexpr std::string_view kPackedA = "packed A";  // the one label of two words
    if (gemm_.label.starts_with(kPackedA)) return std::string(kPackedA);
    return gemm_.label.substr(0, gemm_.label.find(' '));
  }

 private:
  void multiply_by_library(const T* a, const T* b, T* c) const {
    const std::string_view form = shape_.form;
    const bool updates = form.size() > 2;
    const auto number = [](std::int64_t size) { return static_cast<int>(size); };
    const auto transpose = [](char letter) {
      return letter == 'T' ? BlasLibrary::kTranspose : BlasLibrary::kNoTranspose;
    };
    library_->gemm<T>()(
        BlasLibrary::kRowMajor, transpose(form[0]), transpose(form[1]), number(shape_.m),
        number(shape_.n), number(shape_.k), updates ? T(kUpdateFactor) : T(1), a,
        number(form[0] == 'T' ? shape_.m : shape_.k), b,
        number(form[1] == 'T' ? shape_.k : shape_.n), updates ? T(1) : T(0), c, number(shape_.n));
  }

  Shape shape_ = {};
  const BlasLibrary* library_ = nullptr;
  onnxgrad::device::PreparedGemm gemm_;
  std::shared_ptr<std::byte> scratch_;
};

std::string in_units(double seconds) {
  if (seconds < 1e-6) return fmt::format("{:.0f} ns", seconds * 1e9);
  if (seconds < 1e-3) return fmt::format("{:.2f} us", seconds * 1e6);
  return fmt::format("{:.2f} ms", seconds * 1e3);
}

template <class T>
void print_table(double budget_s, std::string_view wanted, double ring_bytes, int threads,
                 const std::optional<BlasLibrary>& library) {
  fmt::print(
      "| {} |{} tiles | dots | blocked | packed A | split | chosen | GFLOP/s | over the best |\n",
      onnxgrad::dtype_name(onnxgrad::dtype_of<T>()), library ? " BLAS |" : "");
  fmt::print("| --- |{} --- | --- | --- | --- | --- | --- | --- | --- |\n",
             library ? " --- |" : "");
  for (const Shape& shape : kShapes) {
    const std::string title = fmt::format("{}x{}x{} {}", shape.m, shape.n, shape.k, shape.form);
    if (title.find(wanted) == std::string::npos) continue;
    const double flops =
        2.0 * static_cast<double>(shape.m * shape.n) * static_cast<double>(shape.k);
    Ring<T> ring({shape.m * shape.k, shape.n * shape.k, shape.m * shape.n}, ring_bytes);
    std::vector<Product<T>> products;
    std::vector<std::vector<double>> times;
    if (library) products.emplace_back(shape, *library);
    for (const GemmChoice choice : kChoices) products.emplace_back(shape, choice, threads);
    times.resize(products.size());
    constexpr int kRounds = 20;
    const auto count = static_cast<std::int64_t>(budget_s / kRounds / (flops / 50e9 + 50e-9));
    for (int round = 0; round < kRounds; ++round) {
      for (std::size_t i = 0; i < products.size(); ++i) {
        times[i].push_back(products[i].time(ring, std::max<std::int64_t>(count, 1)));
      }
    }
    for (std::vector<double>& of_one : times) std::ranges::sort(of_one);
    std::string row = fmt::format("| {} |", title);
    const std::size_t counts = ring_bytes > 0 ? kRounds / 2 : 0;  // the median, or the least
    const double chosen = times.back()[counts];
    double least = chosen;
    for (std::size_t i = 0; i + 1 < products.size(); ++i) {
      // An implementation that cannot compute this product falls back on tiles.
      const std::size_t first = library ? 1 : 0;
      const std::string names[] = {"tiles", "dots", "blocked", "packed A", "split"};
      if (i > first && products[i].name() != names[i - first]) {
        row += " |";
        continue;
      }
      row += fmt::format(" {} ({}) |", in_units(times[i].front()), in_units(times[i][kRounds / 2]));
      least = std::min(least, times[i][counts]);
    }
    fmt::print("{} {} | {:.0f} | {:+.0f} % |\n", row, products.back().name(), flops / chosen * 1e-9,
               (chosen / least - 1) * 100);
  }
  fmt::print("\n");
}

}  // namespace

int main(int argc, char** argv) {
  const double budget_s = argc > 1 ? std::atof(argv[1]) : 0.2;
  const std::string_view wanted = argc > 2 ? argv[2] : "";
  const double ring_bytes = argc > 4 ? std::atof(argv[4]) * 1e6 : 0;
  const int threads = argc > 5 ? std::max(std::atoi(argv[5]), 1) : 1;
  std::optional<BlasLibrary> library;
  if (argc > 3 && std::string_view(argv[3]) != "none") library.emplace(argv[3], threads);
  print_table<float>(budget_s, wanted, ring_bytes, threads, library);
  print_table<double>(budget_s, wanted, ring_bytes, threads, library);
}
