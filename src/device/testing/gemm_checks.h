#ifndef ONNXGRAD_DEVICE_TESTING_GEMM_CHECKS_H_
#define ONNXGRAD_DEVICE_TESTING_GEMM_CHECKS_H_

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <random>
#include <vector>

#include "base/f16.h"
#include "device/cpu/f16_gemm.h"
#include "device/cpu/gemm.h"

// Checks of GEMMs of any type against sums in float64, for any implementation.

namespace onnxgrad::device {

/// Memory whose end, up to alignment, is followed by memory without access.
class Guarded {
 public:
  Guarded(std::int64_t bytes, std::size_t alignment) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const auto used = (static_cast<std::size_t>(bytes) + page - 1) / page * page;
    size_ = used + page;
    void* memory =
        ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<std::byte*>(memory);
    EXPECT_EQ(::mprotect(memory_ + used, page, PROT_NONE), 0);
    begin_ = memory_ + (used - static_cast<std::size_t>(bytes)) / alignment * alignment;
    std::memset(begin_, 0xFF, static_cast<std::size_t>(bytes));  // NaN in all types
  }
  ~Guarded() { ::munmap(memory_, size_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  std::byte* begin() const { return begin_; }

 private:
  std::byte* memory_ = nullptr;
  std::byte* begin_ = nullptr;
  std::size_t size_ = 0;
};

/// A matrix of any type in guarded memory.
class TestMatrix {
 public:
  TestMatrix(DataType dtype, std::int64_t count)
      : dtype_(dtype), count_(count), memory_(count * size(), static_cast<std::size_t>(size())) {}
  /// Random elements.
  TestMatrix(DataType dtype, std::int64_t count, std::mt19937& random) : TestMatrix(dtype, count) {
    std::normal_distribution<double> normal;
    for (std::int64_t i = 0; i < count; ++i) set(i, normal(random));
    for (std::int64_t i = 0; i < count; ++i) values_.push_back(element(i));
  }

  std::byte* data() const { return memory_.begin(); }
  std::int64_t count() const { return count_; }
  std::int64_t bytes() const { return count_ * size(); }
  double operator[](std::int64_t i) const {
    return values_.empty() ? element(i) : values_[static_cast<std::size_t>(i)];
  }
  void set(std::int64_t i, double value) {
    if (!values_.empty()) values_[static_cast<std::size_t>(i)] = value;
    switch (dtype_) {
      case DataType::kFloat64:
        return store(i, value);
      case DataType::kFloat32:
        return store(i, static_cast<float>(value));
      case DataType::kFloat16:
        return store(i, base::to_float16(static_cast<float>(value)));
      default:
        return store(i, base::to_bfloat16(static_cast<float>(value)));
    }
  }
  void copy(const TestMatrix& from) const {
    std::memcpy(data(), from.data(), static_cast<std::size_t>(bytes()));
  }
  /// Half a unit in the last place of 1.
  double half_unit() const {
    return dtype_ == DataType::kFloat64   ? 0x1p-53
           : dtype_ == DataType::kFloat32 ? 0x1p-24
           : dtype_ == DataType::kFloat16 ? 0x1p-11
                                          : 0x1p-8;
  }

 private:
  std::int64_t size() const {
    return dtype_ == DataType::kFloat64 ? 8 : dtype_ == DataType::kFloat32 ? 4 : 2;
  }
  double element(std::int64_t i) const {
    switch (dtype_) {
      case DataType::kFloat64:
        return load<double>(i);
      case DataType::kFloat32:
        return static_cast<double>(load<float>(i));
      case DataType::kFloat16:
        return static_cast<double>(base::to_float(load<base::Float16>(i)));
      default:
        return static_cast<double>(base::to_float(load<base::Bfloat16>(i)));
    }
  }
  template <class T>
  T load(std::int64_t i) const {
    T value;
    std::memcpy(&value, data() + i * size(), sizeof(T));
    return value;
  }
  template <class T>
  void store(std::int64_t i, T value) const {
    std::memcpy(data() + i * size(), &value, sizeof(T));
  }

  DataType dtype_;
  std::int64_t count_;
  Guarded memory_;
  std::vector<double> values_;  ///< of operands
};

/// A sum of products in float64, and the sum of their magnitudes.
struct GemmSum {
  double value = 0, size = 0;

  void add(double term) {
    value += term;
    size += std::abs(term);
  }
  void scale(double by) {
    value *= by;
    size *= std::abs(by);
  }
  /// Returns a bound of the rounding errors of any order of k products and some addends.
  double bound(std::int64_t k, double half_unit) const {
    return 2 * half_unit * (static_cast<double>(k) + 6) * size + 1e-35;
  }
};

/// Returns addend + the sum of a(s) * b(s) over k steps.
template <class A, class B>
GemmSum sum_of(std::int64_t k, double addend, const A& a, const B& b) {
  GemmSum sum;
  for (std::int64_t s = 0; s < k; ++s) sum.add(a(s) * b(s));
  sum.add(addend);
  return sum;
}

/// A GEMM of either kind with the types of its operands. In `gemm`, the sums' dtype; factor, and
/// whether an addend that is a matrix is C itself, are those of the run.
struct GemmCase {
  GemmSpec gemm = {};
  DataType dtype = DataType::kFloat32;  ///< of A and, unless rounds_b, of B
  bool rounds_b = false;
  DataType c_dtype = DataType::kFloat32, start_dtype = DataType::kFloat32;
  F16GemmChoice f16_choice = F16GemmChoice::kBest;
  double factor = 1;
  bool is_in_place = false;

  bool is_narrow() const { return dtype != gemm.dtype; }
  F16GemmSpec f16() const {
    F16GemmSpec spec = f16_gemm_spec(gemm);
    spec.dtype = dtype;
    spec.rounds_b = rounds_b;
    spec.c_dtype = c_dtype;
    spec.start_dtype = start_dtype;
    spec.has_consumer = gemm.has_consumer;
    spec.choice = f16_choice;
    return spec;
  }
  bool can_consume() const {
    return is_narrow() ? can_have_consumer(f16()) : can_have_consumer(gemm);
  }
  PreparedGemm prepare() const {
    return is_narrow() ? prepare_f16_gemm(f16()) : prepare_gemm(gemm);
  }
};

/// Operands of a GEMM, random, and its results.
class GemmRun {
 public:
  GemmRun(const GemmCase& one, std::mt19937& random)
      : case_(one),
        a_(one.dtype, m() * k(), random),
        b_(one.rounds_b ? DataType::kFloat32 : one.dtype, n() * k(), random),
        start_(one.start_dtype, one.gemm.start == GemmStart::kRow ? n() : m() * n(), random),
        row_(sum_type(), n(), random),
        matrix_(sum_type(), m() * n(), random),
        scales_(sum_type(), m() * n(), random),
        c_(one.c_dtype, m() * n()),
        sums_(sum_type(), n()) {}

  /// Computes C, sums of columns and times that a consumer or follower gets each element.
  void run() {
    const GemmSpec& spec = case_.gemm;
    const PreparedGemm gemm = case_.prepare();
    label_ = gemm.label;
    const Guarded scratch(gemm.scratch_bytes, 64);
    const Guarded packed(spec.b_is_packed ? packed_b_elements(spec) * 8 : 0, 64);
    if (spec.b_is_packed) pack_gemm_b(spec, b_.data(), packed.begin());
    const bool adds_matrix = spec.start == GemmStart::kMatrix;
    if (case_.is_in_place) c_.copy(adds_matrix ? start_ : matrix_);
    passes_parts_ = spec.has_consumer || gemm.completes != opdef::BlockCut::kNone;
    times_.assign(static_cast<std::size_t>(m() * n()), 0);
    seen_.assign(times_.size(), 0);
    GemmOperands operands{.a = a_.data(),
                          .b = spec.b_is_packed ? packed.begin() : b_.data(),
                          .start = case_.is_in_place && adds_matrix ? c_.data() : start_.data(),
                          .c = c_.data(),
                          .scratch = scratch.begin(),
                          .factor = case_.factor,
                          .more = {case_.is_in_place && !adds_matrix ? c_.data() : matrix_.data(),
                                   row_.data(), matrix_.data()},
                          .scales = scales_.data(),
                          .column_sums = sums_.data()};
    if (spec.has_consumer) {
      operands.c = nullptr;
      operands.finished = consume;
      operands.context = this;
      operands.reads_next = {scales_.data(), nullptr, matrix_.data()};
    } else if (passes_parts_) {
      operands.finished = follow;
      operands.context = this;
    }
    gemm(operands);
  }

  /// Compares all elements, or those of some rows of a large C, with sums in float64.
  void compare() const {
    const GemmSpec& spec = case_.gemm;
    const bool all_rows = m() * n() * k() < 1000000 || spec.sums_columns;
    std::vector<double> sums(static_cast<std::size_t>(n())), bounds(sums);
    for (std::int64_t i = 0; i < m(); ++i) {
      if (!all_rows && i % 13 != 0 && i != m() - 1) continue;
      for (std::int64_t j = 0; j < n(); ++j) {
        const auto [value, bound] = expected(i, j);
        const std::int64_t at = i * n() + j;
        ASSERT_LE(std::abs(c_[at] - value), bound)
            << label_ << " at [" << i << ", " << j << "]: " << c_[at] << ", expected " << value;
        ASSERT_EQ(times_[static_cast<std::size_t>(at)], passes_parts_ ? 1 : 0) << label_;
        ASSERT_TRUE(spec.has_consumer || !passes_parts_ ||
                    seen_[static_cast<std::size_t>(at)] == c_[at] || std::isnan(c_[at]))
            << label_;
        sums[static_cast<std::size_t>(j)] += value;
        bounds[static_cast<std::size_t>(j)] += bound + 64 * c_.half_unit() * std::abs(value);
      }
    }
    for (std::int64_t j = 0; spec.sums_columns && j < n(); ++j) {
      const auto at = static_cast<std::size_t>(j);
      ASSERT_LE(std::abs(sums_[j] - sums[at]), bounds[at]) << label_ << ", sum of column " << j;
    }
  }

  TestMatrix& a() { return a_; }
  TestMatrix& b() { return b_; }
  const TestMatrix& c() const { return c_; }
  double column_sum(std::int64_t j) const { return sums_[j]; }
  const std::string& label() const { return label_; }
  void set_case(const GemmCase& one) { case_ = one; }
  /// Returns C and the sums of its columns.
  std::vector<std::byte> bits() const {
    std::vector<std::byte> all(c_.data(), c_.data() + c_.bytes());
    if (case_.gemm.sums_columns) all.insert(all.end(), sums_.data(), sums_.data() + sums_.bytes());
    return all;
  }

  struct Expected {
    double value = 0, bound = 0;
  };
  /// Returns an element of C and a bound of its error.
  Expected expected(std::int64_t i, std::int64_t j) const {
    const GemmSpec& spec = case_.gemm;
    GemmSum sum = sum_of(
        k(), 0, [&](std::int64_t s) { return a_[spec.transpose_a ? s * m() + i : i * k() + s]; },
        [&](std::int64_t s) {
          const double y = b_[spec.transpose_b ? j * k() + s : s * n() + j];
          return case_.rounds_b ? rounded(y) : y;
        });
    sum.scale(spec.alpha * case_.factor);
    const auto add = [&](GemmStart kind, const TestMatrix& matrix) {
      if (kind != GemmStart::kZero) sum.add(matrix[kind == GemmStart::kRow ? j : i * n() + j]);
    };
    add(spec.start, start_);
    for (std::size_t e = 0; e < kGemmMoreAddends && spec.more[e] != GemmStart::kZero; ++e) {
      add(spec.more[e], spec.more[e] == GemmStart::kRow ? row_ : matrix_);
    }
    if (spec.relu) sum.value = std::max(sum.value, 0.0);
    if (spec.is_scaled) sum.scale(scales_[i * n() + j]);
    return {sum.value, sum.bound(k(), row_.half_unit()) +
                           (case_.is_narrow() ? c_.half_unit() * std::abs(sum.value) : 0)};
  }

 private:
  std::int64_t m() const { return case_.gemm.m; }
  std::int64_t n() const { return case_.gemm.n; }
  std::int64_t k() const { return case_.gemm.k; }
  DataType sum_type() const { return case_.gemm.dtype; }
  double rounded(double value) const {
    const auto single = static_cast<float>(value);
    return static_cast<double>(case_.dtype == DataType::kFloat16
                                   ? base::to_float(base::to_float16(single))
                                   : base::to_float(base::to_bfloat16(single)));
  }
  /// Collects parts of C; threads write disjoint ones.
  static void consume(const void* context, const GemmBlock& block) {
    auto& all = *static_cast<GemmRun*>(const_cast<void*>(context));
    const std::int64_t size = all.c_.bytes() / std::max<std::int64_t>(all.c_.count(), 1);
    for (std::int64_t i = 0; i < block.rows; ++i) {
      const std::int64_t at = (block.row + i) * all.n() + block.column;
      const auto* from = static_cast<const std::byte*>(block.c) + i * block.c_row * size;
      std::memcpy(all.c_.data() + at * size, from, static_cast<std::size_t>(block.columns * size));
      for (std::int64_t j = 0; j < block.columns; ++j)
        ++all.times_[static_cast<std::size_t>(at + j)];
    }
  }

  /// Reads parts of C in place.
  static void follow(const void* context, const GemmBlock& block) {
    auto& all = *static_cast<GemmRun*>(const_cast<void*>(context));
    for (std::int64_t i = block.row; i < block.row + block.rows; ++i) {
      for (std::int64_t j = block.column; j < block.column + block.columns; ++j) {
        const auto at = static_cast<std::size_t>(i * all.n() + j);
        all.seen_[at] = all.c_[i * all.n() + j];
        ++all.times_[at];
      }
    }
  }

  GemmCase case_;
  TestMatrix a_, b_, start_, row_, matrix_, scales_, c_, sums_;
  bool passes_parts_ = false;
  std::vector<unsigned char> times_;
  std::vector<double> seen_;  ///< by a follower, when it gets each element
  std::string label_;
};

inline void check(const GemmCase& one, std::mt19937& random) {
  const GemmSpec& spec = one.gemm;
  SCOPED_TRACE(testing::Message()
               << spec.m << "x" << spec.n << "x" << spec.k << " transposes " << spec.transpose_a
               << spec.transpose_b << " start " << static_cast<int>(spec.start) << " more "
               << static_cast<int>(spec.more[0]) << " relu " << spec.relu << " scaled "
               << spec.is_scaled << " sums " << spec.sums_columns << " consumer "
               << spec.has_consumer << " packed " << spec.b_is_packed << " threads " << spec.threads
               << " choice " << static_cast<int>(spec.choice) << static_cast<int>(one.f16_choice)
               << " types " << static_cast<int>(one.dtype) << " " << static_cast<int>(one.c_dtype)
               << " " << static_cast<int>(one.start_dtype) << one.rounds_b << one.is_in_place);
  GemmRun run(one, random);
  run.run();
  run.compare();
}

/// Epilogues and operands of GEMMs, each with random others.
enum class GemmFeature : std::uint8_t {
  kNone,
  kRow,
  kMatrix,
  kMoreAddends,
  kScales,
  kColumnSums,
  kScalesAndColumnSums,
  kConsumer,
  kPackedB,
  kRoundedB,
  kCount
};

/// Returns `one` with a feature; false if the GEMM does not have it.
inline bool add_feature(GemmCase& one, GemmFeature feature, std::mt19937& random) {
  GemmSpec& spec = one.gemm;
  const auto coin = [&] { return random() % 2 == 0; };
  spec.transpose_a = coin();
  spec.transpose_b = coin();
  spec.threads = static_cast<int>(random() % 4) + 1;
  spec.alpha = coin() ? 1 : -0.75;
  one.factor = coin() ? 1 : 0.5;
  spec.has_run_time_factor = one.factor != 1;
  if (one.is_narrow()) {
    one.c_dtype = coin() ? one.dtype : DataType::kFloat32;
    one.start_dtype = coin() ? one.dtype : DataType::kFloat32;
  } else {
    one.c_dtype = one.start_dtype = spec.dtype;
  }
  const auto start = [&](GemmStart kind) {
    spec.start = kind;
    spec.relu = coin();
    one.is_in_place = kind == GemmStart::kMatrix && coin() && one.start_dtype == one.c_dtype;
  };
  const auto scales = [&](bool is_scaled, bool sums) {
    if (one.is_narrow() || !can_scale(spec)) return false;
    start(coin() ? GemmStart::kZero : GemmStart::kMatrix);
    spec.is_scaled = is_scaled;
    spec.sums_columns = sums;
    return true;
  };
  switch (feature) {
    case GemmFeature::kRow:
      start(GemmStart::kRow);
      return true;
    case GemmFeature::kMatrix:
      start(GemmStart::kMatrix);
      return true;
    case GemmFeature::kMoreAddends:
      if (one.is_narrow() || spec.n <= 1) return false;
      spec.start = coin() ? GemmStart::kRow : GemmStart::kMatrix;
      spec.relu = coin();
      spec.more = {GemmStart::kMatrix, coin() ? GemmStart::kRow : GemmStart::kZero};
      if (spec.more[1] != GemmStart::kZero && spec.choice != GemmChoice::kSplit && coin()) {
        spec.more[2] = GemmStart::kMatrix;
      }
      one.is_in_place = coin();
      return true;
    case GemmFeature::kScales:
      return scales(true, false);
    case GemmFeature::kColumnSums:
      return scales(false, true);
    case GemmFeature::kScalesAndColumnSums:
      return scales(true, true);
    case GemmFeature::kConsumer:
      one.c_dtype = spec.dtype;
      if (!one.can_consume()) return false;
      spec.has_consumer = true;
      return true;
    case GemmFeature::kPackedB:
      spec.transpose_a = false;
      if (one.is_narrow() || !can_pack_b(spec)) return false;
      start(coin() ? GemmStart::kZero : GemmStart::kMatrix);
      spec.b_is_packed = true;
      return true;
    case GemmFeature::kRoundedB:
      one.rounds_b = one.is_narrow();
      return one.rounds_b;
    default:
      return true;
  }
}

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_TESTING_GEMM_CHECKS_H_
