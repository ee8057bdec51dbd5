#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/rounding.h"
#include "ir/builder.h"
#include "ops/kernel_support_cuda.h"
#include "ops/nn/conv/conv_dnn_cuda.h"
#include "ops/nn/conv/conv_operands.h"
#include "ops/nn/conv/conv_text_cuda.h"
#include "ops/nn/window_text_cuda.h"

// Convolutions as texts, where cuDNN is missing or declines: a product of matrices whose right one
// is gathered from the images, or, of groups with few channels, a sum for each result. Sums have a
// fixed order.

namespace onnxgrad::ops::conv_cuda {
namespace {

using base::ceil_div;
using device::cuda::TextKernel;
using device::cuda::Word;
using Pass = ConvOperands::Pass;

constexpr std::int64_t kFewChannels = 8;  // of a group: tiles would mostly multiply zeros
constexpr std::int64_t kLargeTile = 64;
constexpr std::int64_t kSmallTile = 16;
constexpr std::int64_t kLeastDepth = 256;  // of a part of a split sum
constexpr std::int64_t kMostBlocksZ = 65535;

/// A product of matrices for each group.
struct Product {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t depth = 0;
};

Product product_of(const ConvOperands& conv) {
  const ConvShape& shape = conv.shape;
  const std::int64_t taps = shape.kernel_size();
  switch (conv.pass) {
    case Pass::kForward:
      return {.rows = shape.out_channels,
              .columns = shape.batch * shape.output_size(),
              .depth = shape.in_channels * taps};
    case Pass::kBackwardData:
      return {.rows = shape.in_channels,
              .columns = shape.batch * shape.input_size(),
              .depth = shape.out_channels * taps};
    default:
      return {.rows = shape.out_channels,
              .columns = shape.in_channels * taps,
              .depth = shape.batch * shape.output_size()};
  }
}

bool is_float(DataType dtype) {
  return dtype == DataType::kFloat32 || dtype == DataType::kFloat16 || dtype == DataType::kBfloat16;
}

// True if sums are in float64; else all operands have 32 or 16 bits, and sums are in float32.
bool is_wide(const opdef::KernelRequest& request, const ConvOperands& conv) {
  return operand(request, conv.w).dtype == DataType::kFloat64;
}

bool has_types(const opdef::KernelRequest& request, const ConvOperands& conv) {
  return std::ranges::all_of(
      std::array{conv.x, conv.w, conv.y, conv.bias, conv.residual}, [&](int arg) {
        if (arg < 0) return true;
        const DataType dtype = operand(request, arg).dtype;
        return is_wide(request, conv) ? dtype == DataType::kFloat64 : is_float(dtype);
      });
}

// Numbers of an operand in memory: og_<name>, og_get_<name> and og_set_<name>.
std::string operand_text(std::string_view name, DataType dtype) {
  std::string_view type = dtype == DataType::kFloat64 ? "double" : "float";
  std::string_view get = "from[i]";
  std::string_view set = "value";
  if (dtype == DataType::kFloat16) {
    type = "og_u16";
    get = "og_from_f16(from[i])";
    set = "og_to_f16(value)";
  } else if (dtype == DataType::kBfloat16) {
    type = "og_u16";
    get = "og_from_bf16(from[i])";
    set = "og_to_bf16(value)";
  }
  return fmt::format(
      "typedef {1} og_{0};\n"
      "OG_FUNCTION og_s og_get_{0}(const og_{0}* from, og_i64 i) {{ return {2}; }}\n"
      "OG_FUNCTION void og_set_{0}(og_{0}* to, og_i64 i, og_s value) {{ to[i] = {3}; }}\n",
      name, type, get, set);
}

std::string types_text(const opdef::KernelRequest& request, const ConvOperands& conv) {
  const DataType sums = is_wide(request, conv) ? DataType::kFloat64 : DataType::kFloat32;
  std::string text =
      fmt::format("typedef {} og_s;\n", sums == DataType::kFloat64 ? "double" : "float");
  const std::pair<const char*, int> operands[] = {
      {"x", conv.x}, {"w", conv.w}, {"y", conv.y}, {"b", conv.bias}, {"r", conv.residual}};
  for (const auto& [name, arg] : operands) {
    text += operand_text(name, arg < 0 ? sums : operand(request, arg).dtype);
  }
  return text + fmt::format("enum {{ og_pass = {} }};\n", static_cast<int>(conv.pass));
}

std::vector<Word> words_of(const ConvOperands& conv, std::int64_t splits) {
  const auto address = [](int arg) {
    return arg < 0 ? Word::of(std::int64_t{0}) : Word::argument(arg);
  };
  const ConvShape& shape = conv.shape;
  std::vector<Word> words{address(conv.x),        address(conv.w),
                          address(conv.y),        address(conv.bias),
                          address(conv.residual), address(splits > 1 ? conv.scratch : -1)};
  for (const std::int64_t number :
       {shape.batch, shape.groups, shape.out_channels, shape.in_channels}) {
    words.push_back(Word::of(number));
  }
  for (const WindowAxis& axis : shape.axes) append_window(words, axis);
  words.push_back(Word::of(splits));
  words.push_back(Word::of(static_cast<double>(conv.low)));
  words.push_back(Word::of(static_cast<double>(conv.high)));
  return words;
}

opdef::PreparedKernel direct(const opdef::KernelRequest& request, const ConvOperands& conv) {
  const std::string head = types_text(request, conv) + conv_prelude_text();
  if (conv.pass == Pass::kBackwardWeight) {
    TextKernel kernel = text_kernel(request, head + conv_direct_weight_text(), "og_direct_weight",
                                    words_of(conv, 1));
    kernel.block[0] = kConvThreads;
    kernel.grid[0] = device::cuda::num_blocks(operand(request, conv.w).dims.num_elements(), 1);
    return prepared(std::move(kernel), "text, a block for each weight", conv.shape.flops());
  }
  const int result = conv.pass == Pass::kForward ? conv.y : conv.x;
  return prepared(text_kernel_over(request, operand(request, result).dims.num_elements(),
                                   head + conv_direct_text(), "og_direct", words_of(conv, 1)),
                  "text, a thread for each result", conv.shape.flops());
}

opdef::PreparedKernel tiles(const opdef::KernelRequest& request, const ConvOperands& conv,
                            const Product& product) {
  const std::int64_t wanted = card_of(request)->multiprocessors();
  const std::int64_t groups = conv.shape.groups;
  const auto num_tiles = [&](std::int64_t tile) {
    return ceil_div(product.rows, tile) * ceil_div(product.columns, tile) * groups;
  };
  const bool may_split = conv.pass == Pass::kBackwardWeight;
  const std::int64_t most = may_split ? std::max<std::int64_t>(product.depth / kLeastDepth, 1) : 1;
  const bool is_large = product.rows > kSmallTile && product.columns > kSmallTile &&
                        num_tiles(kLargeTile) * most >= wanted / 2;
  const std::int64_t tile = is_large ? kLargeTile : kSmallTile;
  const std::int64_t splits = std::min(
      std::clamp<std::int64_t>(2 * wanted / num_tiles(tile), 1, most), kMostBlocksZ / groups);
  const std::string head = types_text(request, conv) + conv_prelude_text();
  std::vector<TextKernel> kernels;
  kernels.push_back(text_kernel(
      request, head + fmt::format("enum {{ og_tile = {} }};\n", tile) + conv_tiles_text(),
      "og_tiles", words_of(conv, splits)));
  kernels.back().block[0] = kConvThreads;
  kernels.back().grid = {static_cast<unsigned>(ceil_div(product.columns, tile)),
                         static_cast<unsigned>(ceil_div(product.rows, tile)),
                         static_cast<unsigned>(groups * splits)};
  const std::int64_t weights = groups * product.rows * product.columns;
  if (splits > 1) {
    kernels.push_back(text_kernel_over(request, weights, head + conv_sum_text(), "og_sum",
                                       {Word::argument(conv.scratch), Word::argument(conv.w),
                                        Word::of(weights), Word::of(splits)}));
  }
  opdef::PreparedKernel kernel =
      prepared(std::move(kernels),
               fmt::format("text, tiles {}, {} x {} x {}, {} parts", tile, product.rows,
                           product.depth, product.columns, splits),
               conv.shape.flops());
  const std::int64_t bytes = is_wide(request, conv) ? 8 : 4;
  kernel.scratch_bytes = splits > 1 ? splits * weights * bytes : 0;
  return kernel;
}

opdef::KernelOffer offer_conv(const opdef::KernelRequest& request) {
  const auto conv = ConvOperands::of(request);
  if (!conv) return opdef::KernelOffer::decline("more than three spatial axes");
  if (!has_types(request, *conv)) {
    return opdef::KernelOffer::decline("floating-point numbers of one size only");
  }
  const Product product = product_of(*conv);
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (std::max(product.columns, product.depth) > kMost) {
    return opdef::KernelOffer::decline("more than 2^31 positions");
  }
  if (request.outputs[0].dims.num_elements() == 0) {
    opdef::PreparedKernel nothing = prepared(std::vector<TextKernel>(), "nothing to compute");
    return {.kernel = std::move(nothing), .declined = {}};
  }
  opdef::KernelOffer library = offer_conv_dnn(request, *conv);
  if (library.kernel.fn != nullptr) return library;
  const bool is_direct = product.rows < kFewChannels || conv->shape.groups > kMostBlocksZ ||
                         product.rows > kSmallTile * kMostBlocksZ;
  return {.kernel = is_direct ? direct(request, *conv) : tiles(request, *conv, product),
          .declined = {}};
}

}  // namespace

void register_conv_cuda(opdef::KernelRegistry& registry) {
  for (const auto& [domain, op_type] :
       {std::pair{std::string_view(), "Conv"}, std::pair{ir::kFusedDomain, "Conv"},
        std::pair{std::string_view(), "ConvTranspose"},
        std::pair{ir::kFunctionDomain, "ConvInputGrad"},
        std::pair{ir::kFunctionDomain, "ConvWeightGrad"}}) {
    registry.add(domain, op_type, 0, offer_conv);
  }
}

}  // namespace onnxgrad::ops::conv_cuda
