#include <algorithm>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "ops/block_text_cuda.h"
#include "ops/kernel_support.h"
#include "ops/kernel_support_cuda.h"
#include "ops/random/random_errors.h"
#include "ops/random_text_cuda.h"

// Random generators, with the words and formulas of the CPU (ops/random/random_numbers_cpu.cpp):
// elements 2 b and 2 b + 1 of the batch come from block b. A probability that is none, and a row of
// scores without one, are refused.

namespace onnxgrad::ops::random_numbers_cuda {
namespace {

using device::cuda::TextKernel;
using device::cuda::Word;

// Words: operand, y, sums (scratch), elements, first number, second number, samples of a row,
// classes, then the words of random numbers, and where values are refused.
constexpr const char* kUnit = R"(
// A uniform number in (0, 1) from two words.
OG_FUNCTION double og_unit(og_u64 high, og_u64 low) {
  return ((double)((high << 32 | low) >> 11) + 0.5) * 0x1p-53;
}

template <class W>
OG_FUNCTION double og_uniform(const W& a, og_i64 i) {
  const og_i64 number = og_number(a, 8, i);
  const og_random words = og_block(a, 8, (og_u64)number / 2);
  const int k = (int)(number % 2) * 2;
  return og_unit(words.word[k], words.word[k + 1]);
}

template <class W>
OG_FUNCTION double og_normal(const W& a, og_i64 i) {
  const og_i64 number = og_number(a, 8, i);
  const og_random words = og_block(a, 8, (og_u64)number / 2);
  const double radius = sqrt(-2 * log(og_unit(words.word[0], words.word[1])));
  const double angle = 2 * 3.141592653589793 * og_unit(words.word[2], words.word[3]);
  return radius * (number % 2 == 0 ? cos(angle) : sin(angle));
}

OG_KERNEL(og_uniforms, 18) {
  for (og_i64 i = og_first(); i < a.integer(3); i += og_stride()) {
    a.pointer<og_t>(1)[i] = (og_t)(a.real(4) + (a.real(5) - a.real(4)) * og_uniform(a, i));
  }
}

OG_KERNEL(og_normals, 18) {
  for (og_i64 i = og_first(); i < a.integer(3); i += og_stride()) {
    a.pointer<og_t>(1)[i] = (og_t)(a.real(4) + a.real(5) * og_normal(a, i));
  }
}

OG_KERNEL(og_bernoullis, 18) {
  for (og_i64 i = og_first(); i < a.integer(3); i += og_stride()) {
    const double p = (double)a.pointer<og_p>(0)[i];
    if (!(p >= 0 && p <= 1)) og_refuse(a.pointer<og_u64>(16), a.integer(17), og_bits<og_i64>(p), i);
    a.pointer<og_t>(1)[i] = (og_t)(og_uniform(a, i) < p);
  }
}

// A thread for each row: sums over the classes, then the samples of the row.
OG_KERNEL(og_multinomials, 18) {
  const og_i64 samples = a.integer(6), classes = a.integer(7);
  for (og_i64 row = og_first(); row * samples < a.integer(3); row += og_stride()) {
    const og_p* const scores = a.pointer<og_p>(0) + row * classes;
    double* const sums = a.pointer<double>(2) + row * classes;
    og_p most = scores[0];
    for (og_i64 c = 1; c < classes; ++c) {
      if (most < scores[c]) most = scores[c];
    }
    double total = 0;
    for (og_i64 c = 0; c < classes; ++c) {
      sums[c] = total += exp((double)scores[c] - (double)most);
    }
    if (!(total > 0 && total - total == 0)) {
      og_refuse(a.pointer<og_u64>(16), a.integer(17), row, 0);
    }
    for (og_i64 i = row * samples; i < (row + 1) * samples; ++i) {
      const double wanted = og_uniform(a, i) * total;
      og_i64 low = 0, high = classes - 1;
      while (low < high) {
        const og_i64 middle = (low + high) / 2;
        if (wanted < sums[middle]) high = middle;
        else low = middle + 1;
      }
      a.pointer<og_t>(1)[i] = (og_t)low;
    }
  }
}
)";

struct Numbers {
  double first = 0, second = 1;
  std::int64_t samples = 1, classes = 1;
};

KernelOffer offer_kernel(const KernelRequest& request, const char* name, const Numbers& numbers,
                         std::int64_t threads, const Refusal& refused = {},
                         std::int64_t scratch_bytes = 0) {
  const TensorDesc& y = request.outputs[0];
  const std::string_view type = text_type(y.dtype);
  if (type.empty() || is_f16(y.dtype)) return decline_dtype(request, y.dtype);
  const DataType operand = request.has_input(0) ? request.inputs[0].dtype : DataType::kFloat32;
  const auto result = static_cast<std::int64_t>(request.inputs.size());
  std::vector<Word> words{optional_argument(request.has_input(0) ? 0 : -1),
                          Word::argument(result),
                          Word::argument(result + 1),
                          Word::of(y.dims.num_elements()),
                          Word::of(numbers.first),
                          Word::of(numbers.second)};
  add_integers(words, {numbers.samples, numbers.classes});
  add_random_words(words, request.node, y.dims);
  if (refused.record != nullptr) {
    refused.append(words);
  } else {
    add_integers(words, {0, 0});
  }
  const std::string_view operand_type = text_type(operand);
  const std::string text =
      std::string(block_text()) +
      typedefs({{"og_t", type}, {"og_p", operand_type.empty() ? "float" : operand_type}}) +
      random_text() + kUnit;
  KernelOffer offer;
  TextKernel kernel = text_kernel_over(request, threads, text, name, std::move(words));
  kernel.keeps = refused.record;
  offer.kernel = prepared(std::move(kernel), "words of Philox");
  if (refused.record != nullptr) offer.kernel.checks = {{.input = 0}};
  offer.kernel.scratch_bytes = scratch_bytes;
  return offer;
}

bool is_number(DataType dtype) {
  return dtype == DataType::kFloat32 || dtype == DataType::kFloat64;
}

KernelOffer offer_scaled(const KernelRequest& request, const char* name, const char* first,
                         const char* second) {
  const DataType dtype = request.outputs[0].dtype;
  if (!is_number(dtype)) return decline_dtype(request, dtype);
  return offer_kernel(request, name,
                      {.first = static_cast<double>(request.node.float_attribute(first)),
                       .second = static_cast<double>(request.node.float_attribute(second))},
                      request.outputs[0].dims.num_elements());
}

KernelOffer offer_normal(const KernelRequest& request) {
  return offer_scaled(request, "og_normals", "mean", "scale");
}

KernelOffer offer_uniform(const KernelRequest& request) {
  return offer_scaled(request, "og_uniforms", "low", "high");
}

KernelOffer offer_bernoulli(const KernelRequest& request) {
  if (!is_number(request.inputs[0].dtype)) return decline_dtype(request, request.inputs[0].dtype);
  const Refusal refused =
      refusal(request, [node = request.node.name](std::int64_t bits, std::int64_t /*position*/) {
        throw_probability(std::bit_cast<double>(bits), node);
      });
  return offer_kernel(request, "og_bernoullis", {}, request.outputs[0].dims.num_elements(),
                      refused);
}

KernelOffer offer_multinomial(const KernelRequest& request) {
  const Dims& x = request.inputs[0].dims;
  if (!is_number(request.inputs[0].dtype)) return decline_dtype(request, request.inputs[0].dtype);
  if (x.rank() != 2 || x[1] == 0) return KernelOffer::decline("scores that are no matrix");
  const Refusal refused =
      refusal(request, [node = request.node.name](std::int64_t row, std::int64_t /*position*/) {
        throw_row_without_class(row, node);
      });
  return offer_kernel(request, "og_multinomials",
                      {.samples = request.node.int_attribute("sample_size"), .classes = x[1]}, x[0],
                      refused, std::max<std::int64_t>(x.num_elements(), 1) * 8);
}

}  // namespace

void register_random_numbers_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "RandomNormal", 0, offer_normal);
  registry.add("", "RandomNormalLike", 0, offer_normal);
  registry.add("", "RandomUniform", 0, offer_uniform);
  registry.add("", "RandomUniformLike", 0, offer_uniform);
  registry.add("", "Bernoulli", 0, offer_bernoulli);
  registry.add("", "Multinomial", 0, offer_multinomial);
}

}  // namespace onnxgrad::ops::random_numbers_cuda
