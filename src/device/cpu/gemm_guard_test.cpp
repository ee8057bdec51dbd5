#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <random>
#include <vector>

#include "device/cpu/gemm.h"
#include "device/testing/gemm_checks.h"

// Random GEMMs whose operands end where memory without access begins.

namespace onnxgrad::device::gemm_guard_test {
namespace {

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
    const auto before = (used - static_cast<std::size_t>(bytes)) / alignment * alignment;
    begin_ = memory_ + before;
  }
  explicit Guarded(const std::vector<float>& numbers)
      : Guarded(static_cast<std::int64_t>(numbers.size() * sizeof(float)), sizeof(float)) {
    if (!numbers.empty()) std::memcpy(begin_, numbers.data(), numbers.size() * sizeof(float));
  }
  ~Guarded() { ::munmap(memory_, size_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  std::byte* begin() const { return begin_; }
  float at(std::int64_t i) const {
    float value = 0;
    std::memcpy(&value, begin_ + i * static_cast<std::int64_t>(sizeof(float)), sizeof(float));
    return value;
  }

 private:
  std::byte* memory_ = nullptr;
  std::byte* begin_ = nullptr;
  std::size_t size_ = 0;
};

/// Returns a short or a long size, as kernels for small and for large GEMMs need.
std::int64_t random_size(std::mt19937& random, std::int64_t most) {
  const std::int64_t longest = random() % 3 == 0 ? 40 : most;
  return 1 + static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(longest));
}

GemmSpec random_spec(std::mt19937& random) {
  GemmSpec spec{
      .m = random_size(random, 500), .n = random_size(random, 300), .k = random_size(random, 600)};
  if (random() % 8 == 0) spec.m = 1024;  // steps of a transposed A are a page apart
  spec.transpose_a = random() % 2 == 0;
  spec.transpose_b = random() % 2 == 0;
  spec.threads = 1 + static_cast<int>(random() % 3);
  if (random() % 2 == 0) {
    spec.start = random() % 2 == 0 ? GemmStart::kMatrix : GemmStart::kRow;
    spec.relu = random() % 2 == 0;
  }
  return spec;
}

TEST(GemmGuard, RandomProductsStayWithinTheirOperands) {
  constexpr int kMatmuls = 150;
  constexpr int kElements = 20;
  std::mt19937 random(7);
  for (int i = 0; i < kMatmuls; ++i) {
    GemmSpec spec = random_spec(random);
    const auto a = random_numbers<float>(spec.m * spec.k, random);
    const auto b = random_numbers<float>(spec.n * spec.k, random);
    const auto start =
        random_numbers<float>(spec.start == GemmStart::kRow ? spec.n : spec.m * spec.n, random);
    const Guarded guarded_a(a);
    const Guarded guarded_b(b);
    const Guarded guarded_start(start);
    for (const GemmChoice choice :
         {GemmChoice::kTiles, GemmChoice::kBlocked, GemmChoice::kBlockedPackedA}) {
      spec.choice = choice;
      SCOPED_TRACE(testing::Message()
                   << spec.m << "x" << spec.n << "x" << spec.k << " A transposed "
                   << spec.transpose_a << ", B " << spec.transpose_b << ", threads " << spec.threads
                   << ", choice " << static_cast<int>(choice));
      const PreparedGemm gemm = prepare_gemm(spec);
      const Guarded scratch(gemm.scratch_bytes, 64);
      const Guarded c(spec.m * spec.n * static_cast<std::int64_t>(sizeof(float)), sizeof(float));
      gemm({.a = guarded_a.begin(),
            .b = guarded_b.begin(),
            .start = guarded_start.begin(),
            .c = c.begin(),
            .scratch = scratch.begin()});
      for (int e = 0; e < kElements; ++e) {
        const auto row = static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(spec.m));
        const auto column =
            static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(spec.n));
        const Expected expected = expected_at(spec, a, b, start, 1, row, column);
        ASSERT_NEAR(c.at(row * spec.n + column), expected.value, expected.bound)
            << row << ", " << column;
      }
    }
  }
}

}  // namespace
}  // namespace onnxgrad::device::gemm_guard_test
