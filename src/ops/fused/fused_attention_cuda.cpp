#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "opdef/attention.h"
#include "ops/block_text_cuda.h"
#include "ops/fused/attention_dnn_cuda.h"
#include "ops/fused/attention_text_cuda.h"
#include "ops/kernel_support.h"
#include "ops/kernel_support_cuda.h"
#include "ops/random_text_cuda.h"

// Attention and its gradient: one kernel forward, two backward, whose sums are in float32 or
// float64. Products of 16 bits are cuDNN's, if it has a plan for them.

namespace onnxgrad::ops::fused_attention_cuda {
namespace {

using device::cuda::TextKernel;
using device::cuda::Word;
using opdef::StridedView;

constexpr int kThreads = 256;

/// Numbers of attention.
struct Sizes {
  std::int64_t heads = 0, key_heads = 0, queries = 0, keys = 0;
  std::int64_t size = 0, value_size = 0;  ///< of a head

  static Sizes of(const opdef::Attention& op) {
    const auto dim = [](const StridedView& view, std::size_t from_last) {
      return view.dims[view.dims.size() - 1 - from_last];
    };
    const auto heads = [](const StridedView& view) {
      std::int64_t count = 1;
      for (std::size_t i = 0; i + 2 < view.dims.size(); ++i) count *= view.dims[i];
      return count;
    };
    return {.heads = heads(op.q),
            .key_heads = heads(op.k),
            .queries = dim(op.q, 1),
            .keys = dim(op.k, 1),
            .size = dim(op.q, 0),
            .value_size = dim(op.v, 0)};
  }
  std::int64_t longest() const { return std::max(size, value_size); }
  double flops() const {
    return 2.0 * static_cast<double>(heads) * static_cast<double>(queries) *
           static_cast<double>(keys) * static_cast<double>(size + value_size);
  }
};

/// Tiles that fit the shared memory of a block.
struct Tiles {
  int size = 0;  ///< elements of a head; 0: it is too long
  int rows = 0, keys = 0;

  static Tiles forward(std::int64_t size, bool is_double) {
    if (size <= 32) return {.size = 32, .rows = 64, .keys = 32};
    if (size <= 64) return {.size = 64, .rows = is_double ? 32 : 64, .keys = is_double ? 16 : 32};
    if (size <= 128) return {.size = 128, .rows = is_double ? 16 : 32, .keys = is_double ? 16 : 32};
    if (size <= 256 && !is_double) return {.size = 256, .rows = 16, .keys = 16};
    return {};
  }
  static Tiles backward(std::int64_t size, bool is_double) {
    const int tile = is_double ? 16 : 32;
    if (size <= 32) return {.size = 32, .rows = tile, .keys = tile};
    if (size <= 64) return {.size = 64, .rows = tile, .keys = tile};
    if (size <= 128 && !is_double) return {.size = 128, .rows = 16, .keys = 16};
    return {};
  }
};

// The words of a view; false: it has too many axes of heads. An absent one has zeros.
bool append_view(std::vector<Word>& words, const StridedView& view) {
  std::vector<std::int64_t> sizes, steps;
  const std::size_t rank = view.dims.size();
  for (std::size_t i = 0; i + 2 < rank; ++i) {
    if (view.dims[i] == 1) continue;
    if (!sizes.empty() && steps.back() == view.dims[i] * view.strides[i]) {
      sizes.back() *= view.dims[i];
      steps.back() = view.strides[i];
    } else {
      sizes.push_back(view.dims[i]);
      steps.push_back(view.strides[i]);
    }
  }
  if (sizes.size() > 3) return false;
  sizes.insert(sizes.begin(), 3 - sizes.size(), 1);
  steps.insert(steps.begin(), 3 - steps.size(), 0);
  const bool is_present = rank >= 2;
  add_integers(words,
               {view.offset, sizes[1], sizes[2], steps[0], steps[1], steps[2],
                is_present ? view.strides[rank - 2] : 0, is_present ? view.strides[rank - 1] : 0});
  return true;
}

/// Arguments of the operands that both passes read.
struct Places {
  int q = 0, k = 1, v = 2, y = 0, stats = -1, first_mask = 3;
};

// The words of both passes; the reason if there is no kernel.
std::string append_common(std::vector<Word>& words, const KernelRequest& request,
                          const opdef::Attention& op, const Places& at) {
  const Sizes sizes = Sizes::of(op);
  if (sizes.heads == 0 || sizes.queries == 0 || sizes.keys == 0) return "no scores";
  if (op.masks.size() > static_cast<std::size_t>(kMostMasks)) return "too many masks";
  for (const int place : {at.q, at.k, at.v}) words.push_back(Word::argument(place));
  words.push_back(optional_argument(at.y));
  words.push_back(optional_argument(at.stats));
  add_integers(words, {sizes.heads, sizes.heads / sizes.key_heads, sizes.queries, sizes.keys,
                       sizes.size, sizes.value_size, op.causal ? 1 : 0, op.causal_offset});
  words.push_back(Word::of(op.scale));
  add_integers(words, {std::ssize(op.masks),
                       op.dropout > 0 ? static_cast<std::int64_t>(std::ldexp(op.dropout, 32)) : 0});
  words.push_back(Word::of(1 / (1 - op.dropout)));
  add_random_words(words, request.node, {});
  bool fits = true;
  for (const StridedView* view : {&op.q, &op.k, &op.v, &op.y}) {
    fits = append_view(words, *view) && fits;
  }
  for (int m = 0; m < kMostMasks; ++m) {
    const bool is_present = m < std::ssize(op.masks);
    const auto mask = is_present ? op.masks[static_cast<std::size_t>(m)] : opdef::AttentionMask{};
    words.push_back(optional_argument(is_present ? at.first_mask + m : -1));
    words.push_back(Word::of(static_cast<std::int64_t>(mask.kind)));
    words.push_back(Word::of(static_cast<double>(mask.fill)));
    fits = append_view(words, mask.view) && fits;
  }
  return fits ? "" : "heads in more than three axes";
}

bool is_wide(const KernelRequest& request) { return request.inputs[0].dtype == DataType::kFloat64; }

// The type of products of 16 bits; kUndefined: they are not. A pass that asks has rounded the
// probabilities; `q` is read in 16 bits afterwards.
DataType half_of(const KernelRequest& request, const opdef::Attention& op, std::size_t q) {
  if (is_f16(request.inputs[q].dtype)) return request.inputs[q].dtype;
  return request.is_candidate ? op.probabilities_type : DataType::kUndefined;
}

// The type in which added masks are stored; kUndefined: in several.
DataType mask_type(const KernelRequest& request, const opdef::Attention& op, std::size_t first) {
  DataType found = is_wide(request) ? DataType::kFloat64 : DataType::kFloat32;
  for (std::size_t i = 0; i < op.masks.size(); ++i) {
    if (op.masks[i].kind == opdef::MaskKind::kAdd) found = request.inputs[first + i].dtype;
  }
  for (std::size_t i = 0; i < op.masks.size(); ++i) {
    const bool is_added = op.masks[i].kind == opdef::MaskKind::kAdd;
    if (is_added && request.inputs[first + i].dtype != found) return DataType::kUndefined;
  }
  return found;
}

// The reason for which these operands have no kernel. `first_mask`: the first of the masks.
std::string refusal_of(const KernelRequest& request, const opdef::Attention& op,
                       std::size_t first_mask) {
  const DataType sums = is_wide(request) ? DataType::kFloat64 : DataType::kFloat32;
  for (const TensorDesc& desc : request.inputs) {
    const DataType dtype = desc.dtype;
    const bool is_read = dtype == sums || (sums == DataType::kFloat32 && is_f16(dtype));
    if (desc.is_present() && dtype != DataType::kBool && !is_read) {
      return "operands of different types";
    }
  }
  for (const TensorDesc& desc : request.outputs) {
    if (desc.is_present() && desc.dtype != sums) return "results of 16 bits";
  }
  if (mask_type(request, op, first_mask) == DataType::kUndefined) return "masks of several types";
  if (op.stores_probabilities) return "probabilities are faster computed again";
  const bool is_plain = op.probabilities_type == DataType::kUndefined;
  if (request.is_candidate && request.numerics.allows_tf32 && is_plain &&
      sums == DataType::kFloat32) {
    return "products in tf32 are faster";
  }
  return "";
}

// Flops that texts do in float32 in the time that several kernels for products of 16 bits take.
constexpr double kFewFlops = 1e8;

std::string operand_types(const KernelRequest& request, const opdef::Attention& op, std::size_t q,
                          std::size_t first_mask) {
  return std::string(block_text()) +
         typedefs({{"og_t", is_wide(request) ? "double" : "float"},
                   {"og_q", text_type(request.inputs[q].dtype)},
                   {"og_k", text_type(request.inputs[q + 1].dtype)},
                   {"og_v", text_type(request.inputs[q + 2].dtype)},
                   {"og_m", text_type(mask_type(request, op, first_mask))}});
}

TextKernel over_blocks(const KernelRequest& request, const std::string& text, const char* name,
                       std::int64_t blocks, std::vector<Word> words) {
  TextKernel kernel = text_kernel(request, text, name, std::move(words));
  kernel.block[0] = kThreads;
  kernel.grid[0] = device::cuda::num_blocks(blocks, 1);
  return kernel;
}

std::string label_of(const Sizes& sizes, bool is_causal) {
  return fmt::format("tiles of {} of {}x{}x{}{}", sizes.heads, sizes.queries, sizes.keys,
                     sizes.size, is_causal ? " causal" : "");
}

KernelOffer offer_attention(const KernelRequest& request) {
  const auto op = opdef::Attention::read(request.node);
  if (std::string reason = refusal_of(request, op, 3); !reason.empty()) {
    return KernelOffer::decline(std::move(reason));
  }
  const Sizes sizes = Sizes::of(op);
  if (const DataType half = half_of(request, op, 0); half != DataType::kUndefined) {
    KernelOffer library = offer_attention_dnn(request, op, half);
    if (library.kernel.fn != nullptr) return library;
    if (request.is_candidate && sizes.flops() > kFewFlops) return library;
  }
  const Tiles tiles = Tiles::forward(sizes.longest(), is_wide(request));
  if (tiles.size == 0) return KernelOffer::decline("heads of too many elements");
  const auto result = static_cast<int>(request.inputs.size());
  std::vector<Word> words;
  const std::string reason = append_common(
      words, request, op, {.y = result, .stats = request.has_output(1) ? result + 1 : -1});
  if (!reason.empty()) return KernelOffer::decline(reason);
  const std::string text = operand_types(request, op, 0, 3) +
                           fmt::format("enum {{ og_rows = {}, og_keys = {}, og_size = {} }};\n",
                                       tiles.rows, tiles.keys, tiles.size) +
                           attention_text();
  const std::int64_t blocks = sizes.heads * ceil_div(sizes.queries, std::int64_t{tiles.rows});
  KernelOffer offer;
  offer.kernel = prepared(over_blocks(request, text, "og_attention", blocks, std::move(words)),
                          label_of(sizes, op.causal), sizes.flops());
  return offer;
}

KernelOffer offer_gradient(const KernelRequest& request) {
  const auto op = opdef::AttentionGradient::read(request.node);
  if (std::string reason = refusal_of(request, op.forward, 6); !reason.empty()) {
    return KernelOffer::decline(std::move(reason));
  }
  if (!request.has_input(1)) return KernelOffer::decline("no results of the forward pass");
  const Sizes sizes = Sizes::of(op.forward);
  if (const DataType half = half_of(request, op.forward, 3); half != DataType::kUndefined) {
    KernelOffer library = offer_attention_gradient_dnn(request, op, half);
    if (library.kernel.fn != nullptr) return library;
    if (request.is_candidate && sizes.flops() > kFewFlops) return library;
  }
  const Tiles tiles = Tiles::backward(sizes.longest(), is_wide(request));
  if (tiles.size == 0) return KernelOffer::decline("heads of too many elements");
  std::vector<Word> words;
  std::string reason = append_common(words, request, op.forward,
                                     {.q = 3, .k = 4, .v = 5, .y = 1, .stats = 2, .first_mask = 6});
  words.push_back(Word::argument(0));
  const auto first = static_cast<int>(request.inputs.size());
  const auto is_wanted = [&](int i) { return request.has_output(static_cast<std::size_t>(i)); };
  for (int i = 0; i < 4; ++i) words.push_back(optional_argument(is_wanted(i) ? first + i : -1));
  for (const StridedView* view : {&op.dy, &op.dq, &op.dk, &op.dv}) {
    if (!append_view(words, *view)) reason = "heads in more than three axes";
  }
  if (!reason.empty()) return KernelOffer::decline(reason);
  const std::string text =
      operand_types(request, op.forward, 3, 6) +
      typedefs({{"og_y", text_type(request.inputs[1].dtype)},
                {"og_dy", text_type(request.inputs[0].dtype)}}) +
      fmt::format("enum {{ og_tile = {}, og_size = {} }};\n", tiles.rows, tiles.size) +
      attention_gradient_text();
  std::vector<TextKernel> launches;
  if (is_wanted(1) || is_wanted(2)) {
    launches.push_back(over_blocks(request, text, "og_keys_back",
                                   sizes.key_heads * ceil_div(sizes.keys, std::int64_t{tiles.keys}),
                                   words));
  }
  if (is_wanted(0) || is_wanted(3)) {
    launches.push_back(over_blocks(request, text, "og_queries_back",
                                   sizes.heads * ceil_div(sizes.queries, std::int64_t{tiles.rows}),
                                   words));
  }
  KernelOffer offer;
  offer.kernel =
      prepared(std::move(launches), label_of(sizes, op.forward.causal), 3.5 * sizes.flops());
  return offer;
}

}  // namespace

void register_fused_attention_cuda(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, opdef::kAttention, 0, offer_attention);
  registry.add(ir::kFusedDomain, opdef::kAttentionGradient, 0, offer_gradient);
}

}  // namespace onnxgrad::ops::fused_attention_cuda
