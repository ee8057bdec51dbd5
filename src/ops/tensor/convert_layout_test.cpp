#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "ir/builder.h"
#include "opdef/convert_layout.h"
#include "opdef/kernel.h"
#include "opdef/layout_order.h"
#include "ops/builtin.h"

// Compares conversions with an index formula that is written here once more.

namespace onnxgrad::ops_test::convert_layout {
namespace {

using opdef::Layout;

constexpr Layout kChannelsLast{.kind = Layout::Kind::kChannelsLast};

Layout blocked(int block) {
  return {.kind = Layout::Kind::kBlocked, .block = static_cast<std::uint8_t>(block)};
}

struct Shape {
  std::int64_t n, c, p;
};

std::int64_t elements(const Shape& shape, Layout layout) {
  const std::int64_t block = layout.kind == Layout::Kind::kBlocked ? layout.block : 1;
  return shape.n * ((shape.c + block - 1) / block * block) * shape.p;
}

std::int64_t place(const Shape& s, Layout layout, std::int64_t n, std::int64_t c, std::int64_t p) {
  if (layout.kind == Layout::Kind::kPlain) return p + s.p * (c + s.c * n);
  if (layout.kind == Layout::Kind::kChannelsLast) return c + s.c * (p + s.p * n);
  const std::int64_t blocks = (s.c + layout.block - 1) / layout.block;
  return c % layout.block + layout.block * (p + s.p * (c / layout.block + blocks * n));
}

// Element (n, c, p) has bytes that follow from n, c and p; others, before and after the memory too,
// are 0xEE.
std::vector<std::uint8_t> filled(const Shape& s, Layout layout, std::int64_t size) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(elements(s, layout) * size), 0xEE);
  for (std::int64_t n = 0; n < s.n; ++n) {
    for (std::int64_t c = 0; c < s.c; ++c) {
      for (std::int64_t p = 0; p < s.p; ++p) {
        for (std::int64_t b = 0; b < size; ++b) {
          bytes[static_cast<std::size_t>(place(s, layout, n, c, p) * size + b)] =
              static_cast<std::uint8_t>(1 + (n * 101 + c * 31 + p * 7 + b * 13) % 200);
        }
      }
    }
  }
  return bytes;
}

struct Conversion {
  DataType dtype;
  Dims dims;
  Layout from, to;
  int threads = 1;
};

void check(const Conversion& conversion) {
  const auto& [dtype, dims, from, to, threads] = conversion;
  SCOPED_TRACE(dims.to_string() + " " + opdef::to_string(from) + " to " + opdef::to_string(to) +
               " of type " + std::to_string(static_cast<int>(dtype)));
  static const opdef::KernelRegistry kernels = [] {
    opdef::KernelRegistry all;
    ops::register_builtin_cpu_kernels(all);
    return all;
  }();
  ir::Graph graph;
  ir::Value* x = graph.add_input("x", ir::Type::tensor(dtype, dims));
  const ir::Node* node =
      graph.add_node(opdef::kConvertLayout, {x}, 1,
                     opdef::ConvertLayout{.from = from, .to = to}.attributes(), ir::kFusedDomain);
  const opdef::TensorDesc desc{.dtype = dtype, .dims = dims};
  const opdef::KernelRequest request{.node = *node,
                                     .inputs = {desc},
                                     .outputs = {desc},
                                     .constants = {nullptr},
                                     .threads = threads};
  const auto offers = kernels.offers(ir::kFusedDomain, opdef::kConvertLayout);
  ASSERT_EQ(offers.size(), 1U);
  const opdef::KernelOffer offer = offers[0].offer(request);
  ASSERT_NE(offer.kernel.fn, nullptr) << offer.declined;
  EXPECT_EQ(offer.kernel.input_layout(0), from);
  EXPECT_EQ(offer.kernel.output_layout(0), to);

  const Shape shape{dims[0], dims[1], dims.product(2, dims.rank())};
  const std::int64_t size = Dims{1}.size_bytes(dtype);
  std::vector<std::uint8_t> input = filled(shape, from, size);
  std::vector<std::uint8_t> expected = filled(shape, to, size);
  for (std::uint8_t& byte : expected) byte = byte == 0xEE ? 0 : byte;
  EXPECT_EQ(std::ssize(expected), opdef::stored_bytes(dims, dtype, to));
  constexpr std::size_t kGuard = 64;
  std::vector<std::uint8_t> output(expected.size() + 2 * kGuard, 0xEE);
  std::byte* const args[] = {reinterpret_cast<std::byte*>(input.data()),
                             reinterpret_cast<std::byte*>(output.data() + kGuard), nullptr};
  const opdef::StepCells cells;
  offer.kernel.fn(offer.kernel.data.get(), args, {.stream = nullptr, .cells = &cells});
  expected.insert(expected.begin(), kGuard, 0xEE);
  expected.insert(expected.end(), kGuard, 0xEE);
  EXPECT_EQ(output, expected);
}

TEST(ConvertLayout, FollowsTheFormulaBetweenAllLayouts) {
  const std::vector<Layout> layouts{{}, kChannelsLast, blocked(8), blocked(16), blocked(6)};
  for (const Dims& dims : {Dims{2, 16, 3, 5}, Dims{3, 13, 2, 2}, Dims{1, 3, 7}, Dims{2, 5, 1, 1},
                           Dims{2, 9, 2, 1, 3}, Dims{4, 20}, Dims{2, 0, 3, 3}, Dims{0, 4, 2, 2}}) {
    for (const Layout from : layouts) {
      for (const Layout to : layouts) {
        if (from != to) check({.dtype = DataType::kFloat32, .dims = dims, .from = from, .to = to});
      }
    }
  }
}

TEST(ConvertLayout, MovesElementsOfAllTypes) {
  for (const DataType dtype :
       {DataType::kBool, DataType::kInt8, DataType::kFloat8E4M3FN, DataType::kFloat16,
        DataType::kBfloat16, DataType::kUint16, DataType::kInt32, DataType::kFloat64,
        DataType::kInt64, DataType::kComplex64, DataType::kComplex128}) {
    for (const auto& [from, to] : {std::pair{Layout{}, blocked(4)},
                                   {blocked(4), kChannelsLast},
                                   {kChannelsLast, Layout{}},
                                   {blocked(4), blocked(8)}}) {
      check({.dtype = dtype, .dims = Dims{2, 10, 4, 3}, .from = from, .to = to});
    }
  }
}

TEST(ConvertLayout, SharesItsWorkAmongThreads) {
  check({.dtype = DataType::kFloat32,
         .dims = Dims{8, 30, 32, 32},
         .from = {},
         .to = blocked(8),
         .threads = 3});
}

// Two layouts of the same bytes are one.
TEST(ConvertLayout, HasSimplestLayouts) {
  const Dims image{2, 8, 4, 4};
  EXPECT_EQ(opdef::simplest(kChannelsLast, image), kChannelsLast);
  EXPECT_EQ(opdef::simplest(blocked(8), image), kChannelsLast);
  EXPECT_EQ(opdef::simplest(blocked(4), image), blocked(4));
  EXPECT_EQ(opdef::simplest(kChannelsLast, Dims{2, 1, 4, 4}), Layout{});
  EXPECT_EQ(opdef::simplest(kChannelsLast, Dims{2, 8, 1, 1}), Layout{});
  EXPECT_EQ(opdef::simplest(blocked(8), Dims{2, 16}), Layout{});
  EXPECT_EQ(opdef::simplest(blocked(8), Dims{2, 9}), blocked(8));
  EXPECT_EQ(opdef::simplest(blocked(8), Dims{7}), Layout{});
  for (const Layout layout : {Layout{}, kChannelsLast, blocked(16)}) {
    EXPECT_EQ(opdef::layout_named(opdef::to_string(layout)), layout);
  }
  EXPECT_EQ(opdef::layout_named("blocked_0"), std::nullopt);
  EXPECT_EQ(opdef::layout_named("blocked_8x"), std::nullopt);
}

}  // namespace
}  // namespace onnxgrad::ops_test::convert_layout
