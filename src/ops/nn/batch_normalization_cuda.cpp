#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "opdef/fused_normalization.h"
#include "ops/block_text_cuda.h"
#include "ops/kernel_support.h"
#include "ops/kernel_support_cuda.h"
#include "ops/nn/batch_rows_text_cuda.h"

// BatchNormalization, InstanceNormalization, their gradients and the forms of the pass
// fuse_normalization. The elements of a group share statistics: `segments` runs of `length`
// elements, `stride` apart, the first at group * length. A column of a block
// (ops/block_text_cuda.h) is a group.

namespace onnxgrad::ops::batch_normalization_cuda {
namespace {

using device::cuda::TextKernel;
using device::cuda::Word;
using opdef::FusedNormalization;

constexpr const char* kStatistics = R"(
struct og_statistics { double mean, variance; };

template <class W>
OG_FUNCTION og_statistics og_moments(const W& a, const og_x* x, og_i64 end, int at) {
  const og_i64 length = a.integer(at + 1), stride = a.integer(at + 2);
  const double count = (double)a.integer(at + 3);
  if (a.integer(at + 3) == 0) return {0, 0};
  double sum = 0;
  for (og_walk w(length, stride); w.run < end; w.next()) sum += (double)og_get(x[w.at()]);
  const double mean = og_fold_rows<og_sum>(sum) / count;
  double squares = 0;
  for (og_walk w(length, stride); w.run < end; w.next()) {
    const double centred = (double)og_get(x[w.at()]) - mean;
    squares += centred * centred;
  }
  return {mean, og_fold_rows<og_sum>(squares) / count};
}

// As both directions compute it, so that a mask sees the values of the forward pass.
template <class W>
OG_FUNCTION og_t og_restrict(const W& a, int at, og_t value) {
  const og_t low = (og_t)a.real(at), high = (og_t)a.real(at + 1);
  return value < low ? low : value > high ? high : value;
}
)";

// Words: x, scale, bias, mean, variance, residual, y, running mean, running variance, saved mean,
// saved inverse; 11: groups, length, stride, elements of a group, segments, channels; 17: epsilon,
// momentum, low, high; 21: whether the statistics are those of the batch.
constexpr const char* kForward = R"(
OG_KERNEL(og_main, 22) {
  const og_x* const x = a.pointer<og_x>(0);
  const og_x* const residual = a.pointer<og_x>(5);
  og_x* const y = a.pointer<og_x>(6);
  const og_i64 groups = a.integer(11), length = a.integer(12), stride = a.integer(13);
  for (og_i64 first = (og_i64)blockIdx.x * blockDim.x; first < groups; first += og_columns()) {
    const og_i64 group = first + threadIdx.x;
    const bool is_in = group < groups;
    const og_i64 end = is_in ? a.integer(15) : 0;
    const og_i64 begin = group * length;
    const og_i64 channel = is_in ? group % a.integer(16) : 0;
    og_statistics s;
    if (a.integer(21) != 0) {
      s = og_moments(a, x + begin, end, 11);
    } else {
      s = {(double)a.pointer<og_s>(3)[channel], (double)a.pointer<og_s>(4)[channel]};
    }
    const double inverse = 1 / sqrt(s.variance + a.real(17));
    if (threadIdx.y == 0 && is_in) {
      for (int k = 0; k < 2; ++k) {
        og_s* const running = a.pointer<og_s>(7 + k);
        if (running == 0) continue;
        const double old = (double)a.pointer<og_s>(3 + k)[channel];
        const double current = k == 0 ? s.mean : s.variance;
        running[channel] = (og_s)(old * a.real(18) + current * (1 - a.real(18)));
      }
      if (a.pointer<float>(9) != 0) a.pointer<float>(9)[channel] = (float)s.mean;
      if (a.pointer<float>(10) != 0) a.pointer<float>(10)[channel] = (float)inverse;
    }
    if (y == 0 || !is_in) continue;
    const og_t mean = (og_t)s.mean;
    const double scale = (double)a.pointer<og_c>(1)[channel];
    const og_t slope = og_saves ? (og_t)scale * (og_t)inverse : (og_t)(scale * inverse);
    const og_t bias = (og_t)a.pointer<og_c>(2)[channel];
    for (og_walk w(length, stride); w.run < end; w.next()) {
      const og_i64 i = begin + w.at();
      og_t value = ((og_t)og_get(x[i]) - mean) * slope + bias;
      if (residual != 0) value += (og_t)og_get(residual[i]);
      og_set(y, i, og_restrict(a, 19, value));
    }
  }
}
)";

// Words: dy, x, scale, bias, saved mean, saved inverse, more, result, dx, dscale, dbias, g; 12:
// groups, length, stride, elements of a group, segments, channels; 18: epsilon, mask, low, high;
// 22: parts [2, groups] (scratch), if several groups have a channel.
constexpr const char* kGradient = R"(
template <class W>
OG_FUNCTION og_t og_cotangent(const W& a, og_i64 i, og_t mean, og_t slope, og_t bias) {
  const og_g* const more = a.template pointer<og_g>(6);
  og_t g = (og_t)og_get(a.template pointer<og_g>(0)[i]);
  if (more != 0) g += (og_t)og_get(more[i]);
  const og_i64 mask = a.integer(19);
  if (mask == 0) return g;
  if (mask == 3) return og_get(a.template pointer<og_x>(7)[i]) > 0 ? g : (og_t)0;
  const og_t value = ((og_t)og_get(a.template pointer<og_x>(1)[i]) - mean) * slope + bias;
  if (mask == 1) return value > 0 ? g : (og_t)0;
  return value < (og_t)a.real(20) || value > (og_t)a.real(21) ? (og_t)0 : g;
}

OG_KERNEL(og_main, 23) {
  const og_x* const x = a.pointer<og_x>(1);
  const og_c* const scales = a.pointer<og_c>(2);
  og_g* const dx = a.pointer<og_g>(8);
  og_c* const dscale = a.pointer<og_c>(9);
  og_c* const dbias = a.pointer<og_c>(10);
  og_g* const stored = a.pointer<og_g>(11);
  double* const parts = a.pointer<double>(22);
  const og_i64 groups = a.integer(12), length = a.integer(13), stride = a.integer(14);
  const double count = (double)a.integer(15);
  for (og_i64 first = (og_i64)blockIdx.x * blockDim.x; first < groups; first += og_columns()) {
    const og_i64 group = first + threadIdx.x;
    const bool is_in = group < groups;
    const og_i64 end = is_in ? a.integer(16) : 0;
    const og_i64 begin = group * length;
    const og_i64 channel = is_in ? group % a.integer(17) : 0;
    double mean, inverse;
    og_t bias = 0;
    if (og_saves) {
      mean = (double)a.pointer<float>(4)[channel];
      inverse = (double)a.pointer<float>(5)[channel];
      bias = (og_t)a.pointer<og_c>(3)[channel];
    } else {
      const og_statistics s = og_moments(a, x + begin, end, 12);
      mean = s.mean;
      inverse = 1 / sqrt(s.variance + a.real(18));
    }
    const double scale = (double)scales[channel];
    const og_t slope = (og_t)scale * (og_t)inverse;
    double sum = 0, dot = 0;
    for (og_walk w(length, stride); w.run < end; w.next()) {
      const og_i64 i = begin + w.at();
      const og_t g = og_cotangent(a, i, (og_t)mean, slope, bias);
      sum += (double)g;
      dot += (double)g * ((double)og_get(x[i]) - mean);
    }
    sum = og_fold_rows<og_sum>(sum);
    dot = og_fold_rows<og_sum>(dot) * inverse;
    if (threadIdx.y == 0 && is_in) {
      if (parts != 0) {
        parts[group] = dot;
        parts[groups + group] = sum;
      } else {
        if (dscale != 0) dscale[channel] = (og_c)dot;
        if (dbias != 0) dbias[channel] = (og_c)sum;
      }
    }
    const double f = scale * inverse;
    const og_t on_g = (og_t)f, on_x = (og_t)(-f * inverse * dot / count);
    const og_t shift = (og_t)(-f * sum / count);
    for (og_walk w(length, stride); w.run < end; w.next()) {
      const og_i64 i = begin + w.at();
      const og_t g = og_cotangent(a, i, (og_t)mean, slope, bias);
      const og_t centred = (og_t)((double)og_get(x[i]) - mean);
      if (stored != 0) og_set(stored, i, g);
      if (dx != 0) og_set(dx, i, on_g * g + on_x * centred + shift);
    }
  }
}

// Sums over the groups of a channel, in order.
OG_KERNEL(og_combine, 23) {
  const double* const parts = a.pointer<double>(22);
  const og_i64 groups = a.integer(12), channels = a.integer(17);
  for (og_i64 i = og_first(); i < channels; i += og_stride()) {
    double dot = 0, sum = 0;
    for (og_i64 group = i; group < groups; group += channels) {
      dot += parts[group];
      sum += parts[groups + group];
    }
    if (a.pointer<og_c>(9) != 0) a.pointer<og_c>(9)[i] = (og_c)dot;
    if (a.pointer<og_c>(10) != 0) a.pointer<og_c>(10)[i] = (og_c)sum;
  }
}
)";

struct Groups {
  std::int64_t count = 0, segments = 1, stride = 0, length = 0, channels = 0;
  bool has_channels_last = false;  ///< see batch_rows_text_cuda.h

  std::int64_t elements() const { return segments * length; }
  Columns columns() const {
    Columns columns{
        .count = count, .length = elements(), .are_adjacent = length == 1 && segments > 1};
    if (has_channels_last) columns.splits = splits_for(columns);
    return columns;
  }
  std::int64_t moments_bytes() const {
    return (std::int64_t{2} * columns().splits + 1) * count * 8;
  }
  std::int64_t sums_bytes() const { return std::int64_t{2} * columns().splits * count * 8; }
  void add_words(std::vector<Word>& words) const {
    add_integers(words, {count, std::max<std::int64_t>(length, 1), stride, elements(),
                         length == 0 ? 0 : segments, std::max<std::int64_t>(channels, 1)});
  }
  std::string label() const { return "groups of " + std::to_string(elements()); }
};

Groups groups_of(const Dims& x, bool per_instance, bool has_channels_last = false) {
  const std::int64_t length = x.product(2, x.rank());
  if (has_channels_last) {  // of the whole batch
    return {.count = x[1],
            .segments = x[0] * length,
            .stride = x[1],
            .length = 1,
            .channels = x[1],
            .has_channels_last = true};
  }
  return {.count = per_instance ? x[0] * x[1] : x[1],
          .segments = per_instance ? 1 : x[0],
          .stride = x[1] * length,
          .length = length,
          .channels = x[1]};
}

constexpr opdef::Layout kChannelsLast{.kind = opdef::Layout::Kind::kChannelsLast};

// An image in this order is normalized in it, with all else of its shape.
bool has_channels_last(const KernelRequest& request, std::initializer_list<std::size_t> images) {
  return std::ranges::any_of(images, [&](std::size_t i) {
    return request.has_input(i) && request.inputs[i].layout == kChannelsLast;
  });
}

void set_channels_last(const KernelRequest& request, const Dims& images, KernelOffer& offer) {
  const auto layouts_of = [&](const std::vector<TensorDesc>& descs) {
    std::vector<opdef::Layout> layouts(descs.size());
    for (std::size_t i = 0; i < descs.size(); ++i) {
      if (descs[i].is_present() && descs[i].dims == images) layouts[i] = kChannelsLast;
    }
    return layouts;
  };
  offer.kernel.input_layouts = layouts_of(request.inputs);
  offer.kernel.output_layouts = layouts_of(request.outputs);
}

bool is_number(DataType dtype) {
  return dtype == DataType::kFloat32 || dtype == DataType::kFloat64;
}

/// Arguments of the operands of a forward pass; -1: absent.
struct Forward {
  int mean = -1, variance = -1, residual = -1;
  int y = -1, running_mean = -1, running_variance = -1, saved_mean = -1, saved_inverse = -1;
};

struct Types {
  DataType x, channels, statistics;
};

KernelOffer offer_forward(const KernelRequest& request, const Groups& groups, const Forward& at,
                          const Types& types, const FusedNormalization& op, bool uses_batch) {
  std::vector<Word> words = argument_words(0, 3);
  for (const int place : {at.mean, at.variance, at.residual, at.y, at.running_mean,
                          at.running_variance, at.saved_mean, at.saved_inverse}) {
    words.push_back(optional_argument(place));
  }
  groups.add_words(words);
  for (const float real : {op.epsilon, op.momentum, op.low, op.high}) {
    words.push_back(Word::of(static_cast<double>(real)));
  }
  words.push_back(Word::of(std::int64_t{uses_batch}));
  const std::string text =
      typedefs({{"og_t", types.x == DataType::kFloat64 ? "double" : "float"},
                {"og_x", text_type(types.x)},
                {"og_c", text_type(types.channels)},
                {"og_s", text_type(types.statistics)}}) +
      "enum { og_saves = " + (at.saved_mean >= 0 || at.saved_inverse >= 0 ? "1" : "0") + " };\n" +
      kStatistics;
  const Columns columns = groups.columns();
  KernelOffer offer;
  if (!groups.has_channels_last) {
    offer.kernel =
        prepared(column_kernel(request, columns, text + kForward, "og_main", std::move(words)),
                 groups.label());
    return offer;
  }
  const auto scratch = static_cast<int>(request.inputs.size() + request.outputs.size());
  words.push_back(Word::argument(scratch));
  words.push_back(Word::of(std::int64_t{columns.splits}));
  const std::string rows = text + std::string(batch_rows_forward_text());
  std::vector<TextKernel> launches;
  if (uses_batch)
    launches.push_back(column_kernel(request, columns, rows, "og_row_moments", words));
  launches.push_back(column_kernel(request, columns, rows, "og_row_main", words));
  offer.kernel = prepared(std::move(launches), groups.label());
  offer.kernel.scratch_bytes = groups.moments_bytes();
  return offer;
}

std::string wrong_shape(const KernelRequest& request, const Dims& x, std::size_t first,
                        std::size_t last) {
  if (x.rank() < 2) return "no axis of channels";
  for (std::size_t i = first; i < last; ++i) {
    if (request.inputs[i].dims != Dims{x[1]}) return "operands that do not fit the channels";
  }
  return {};
}

KernelOffer offer_plain(const KernelRequest& request, bool per_instance) {
  const Dims& x = request.inputs[0].dims;
  const std::size_t operands = per_instance ? 3 : 5;
  if (auto reason = wrong_shape(request, x, 1, operands); !reason.empty()) {
    return KernelOffer::decline(reason);
  }
  for (std::size_t i = 0; i < operands; ++i) {
    if (!is_number(request.inputs[i].dtype)) return decline_dtype(request, request.inputs[i].dtype);
  }
  const bool uses_batch = per_instance || request.node.int_attribute("training_mode") != 0;
  const auto first = static_cast<int>(request.inputs.size());
  const auto output = [&](int i) {
    return request.has_output(static_cast<std::size_t>(i)) ? first + i : -1;
  };
  Forward at{.y = output(0)};
  if (!per_instance) {
    at.mean = 3;
    at.variance = 4;
  }
  if (!per_instance && uses_batch) {
    at.running_mean = output(1);
    at.running_variance = output(2);
  }
  const FusedNormalization op{.epsilon = request.node.float_attribute("epsilon"),
                              .momentum = request.node.float_attribute("momentum", 0)};
  const bool is_last = !per_instance && has_channels_last(request, {0});
  const Groups groups = groups_of(x, per_instance, is_last);
  KernelOffer offer = offer_forward(
      request, groups, at,
      {request.inputs[0].dtype, request.inputs[1].dtype, request.inputs[operands - 1].dtype}, op,
      uses_batch);
  if (is_last) set_channels_last(request, x, offer);
  return offer;
}

KernelOffer offer_batch(const KernelRequest& request) { return offer_plain(request, false); }
KernelOffer offer_instance(const KernelRequest& request) { return offer_plain(request, true); }

bool are_float32(const KernelRequest& request, std::initializer_list<std::size_t> inputs,
                 std::initializer_list<std::size_t> outputs) {
  for (const std::size_t i : inputs) {
    if (request.has_input(i) && request.inputs[i].dtype != DataType::kFloat32) return false;
  }
  for (const std::size_t i : outputs) {
    if (request.has_output(i) && request.outputs[i].dtype != DataType::kFloat32) return false;
  }
  return true;
}

bool is_image(DataType dtype) { return dtype == DataType::kFloat32 || is_f16(dtype); }

KernelOffer offer_fused(const KernelRequest& request) {
  const DataType type = request.inputs[0].dtype;
  const auto is_same = [&](const TensorDesc& desc) {
    return !desc.is_present() || desc.dtype == type;
  };
  if (!is_image(type) || !is_same(request.outputs[0]) ||
      (request.has_input(5) && !is_same(request.inputs[5])) ||
      !are_float32(request, {1, 2, 3, 4}, {1, 2, 3, 4})) {
    return KernelOffer::decline("images of float32 or of one type of 16 bits only");
  }
  const auto first = static_cast<int>(request.inputs.size());
  const auto output = [&](int i) {
    return request.has_output(static_cast<std::size_t>(i)) ? first + i : -1;
  };
  const bool has_residual = request.has_input(5);
  const Forward at{.mean = 3,
                   .variance = 4,
                   .residual = has_residual ? 5 : -1,
                   .y = output(0),
                   .running_mean = output(1),
                   .running_variance = output(2),
                   .saved_mean = output(3),
                   .saved_inverse = output(4)};
  const bool is_last = has_channels_last(request, {0, 5});
  const Groups groups = groups_of(request.inputs[0].dims, false, is_last);
  KernelOffer offer =
      offer_forward(request, groups, at, {type, DataType::kFloat32, DataType::kFloat32},
                    FusedNormalization::read(request.node), /*uses_batch=*/true);
  offer.kernel.in_place = {{0, 0}};
  if (has_residual) offer.kernel.in_place.emplace_back(5, 0);
  if (is_last) set_channels_last(request, request.inputs[0].dims, offer);
  return offer;
}

/// Prepares a gradient; arguments from `bias` on are those of the fused form, else -1.
KernelOffer prepare_gradient(const KernelRequest& request, const Groups& groups,
                             std::initializer_list<int> fused_operands, const Types& types,
                             const FusedNormalization& op, bool is_fused) {
  const auto first = static_cast<int>(request.inputs.size());
  std::vector<Word> words = argument_words(0, 3);
  for (const int place : fused_operands) words.push_back(optional_argument(place));
  for (int i = 0; i < 4; ++i) {
    const bool is_present = request.has_output(static_cast<std::size_t>(i));
    words.push_back(optional_argument(is_present ? first + i : -1));
  }
  groups.add_words(words);
  words.push_back(Word::of(static_cast<double>(op.epsilon)));
  words.push_back(Word::of(static_cast<std::int64_t>(op.mask)));
  words.push_back(Word::of(static_cast<double>(op.low)));
  words.push_back(Word::of(static_cast<double>(op.high)));
  const bool has_parts = groups.count != groups.channels || groups.has_channels_last;
  const auto scratch = first + static_cast<int>(request.outputs.size());
  words.push_back(optional_argument(has_parts ? scratch : -1));
  const std::string text = typedefs({{"og_t", types.x == DataType::kFloat64 ? "double" : "float"},
                                     {"og_x", text_type(types.x)},
                                     {"og_g", text_type(types.statistics)},
                                     {"og_c", text_type(types.channels)}}) +
                           "enum { og_saves = " + (is_fused ? "1" : "0") + " };\n" + kStatistics +
                           kGradient;
  if (groups.has_channels_last) {
    const Columns columns = groups.columns();
    words.push_back(Word::argument(scratch, groups.sums_bytes()));
    words.push_back(Word::of(std::int64_t{columns.splits}));
    const std::string rows = text + std::string(batch_rows_gradient_text());
    std::vector<TextKernel> launches;
    if (!is_fused)
      launches.push_back(column_kernel(request, columns, rows, "og_row_moments", words));
    launches.push_back(column_kernel(request, columns, rows, "og_row_sums", words));
    launches.push_back(column_kernel(request, columns, rows, "og_row_main", words));
    KernelOffer offer;
    offer.kernel = prepared(std::move(launches), groups.label());
    offer.kernel.scratch_bytes = groups.sums_bytes() + groups.moments_bytes();
    return offer;
  }
  std::vector<TextKernel> launches{
      column_kernel(request, groups.columns(), text, "og_main", words)};
  if (has_parts) {
    launches.push_back(text_kernel_over(request, groups.channels, std::string(block_text()) + text,
                                        "og_combine", words));
  }
  KernelOffer offer;
  offer.kernel = prepared(std::move(launches), groups.label());
  if (has_parts) offer.kernel.scratch_bytes = groups.count * 16;
  return offer;
}

KernelOffer offer_plain_grad(const KernelRequest& request, bool per_instance) {
  const Dims& x = request.inputs[1].dims;
  const DataType dtype = request.inputs[0].dtype;
  if (auto reason = wrong_shape(request, x, 2, 3); !reason.empty()) {
    return KernelOffer::decline(reason);
  }
  if (request.inputs[0].dims != x || request.outputs.size() != 3) {
    return KernelOffer::decline("shapes do not match");
  }
  if (!is_number(dtype)) return decline_dtype(request, dtype);
  for (const TensorDesc& input : request.inputs) {
    if (input.is_present() && input.dtype != dtype) return decline_dtype(request, input.dtype);
  }
  const FusedNormalization op{.epsilon = request.node.float_attribute("epsilon")};
  const bool is_last = !per_instance && has_channels_last(request, {0, 1});
  KernelOffer offer =
      prepare_gradient(request, groups_of(x, per_instance, is_last), {-1, -1, -1, -1, -1},
                       {dtype, dtype, dtype}, op, /*is_fused=*/false);
  if (is_last) set_channels_last(request, x, offer);
  return offer;
}

KernelOffer offer_batch_grad(const KernelRequest& request) {
  return offer_plain_grad(request, false);
}
KernelOffer offer_instance_grad(const KernelRequest& request) {
  return offer_plain_grad(request, true);
}

KernelOffer offer_fused_grad(const KernelRequest& request) {
  const DataType images = request.inputs[1].dtype;
  const DataType cotangents = request.inputs[0].dtype;
  const auto is_of = [](const TensorDesc& desc, DataType dtype) {
    return !desc.is_present() || desc.dtype == dtype;
  };
  const bool has_more = request.has_input(6);
  const bool has_result = request.has_input(7);
  if (!is_image(images) || !is_image(cotangents) || !is_of(request.outputs[0], cotangents) ||
      (has_more && !is_of(request.inputs[6], cotangents)) ||
      (has_result && !is_of(request.inputs[7], images)) ||
      (request.has_output(3) && !is_of(request.outputs[3], cotangents)) ||
      !are_float32(request, {2, 3, 4, 5}, {1, 2})) {
    return KernelOffer::decline("images of float32 or of one type of 16 bits only");
  }
  const bool is_last = has_channels_last(request, {0, 1, 6, 7});
  const Groups groups = groups_of(request.inputs[1].dims, false, is_last);
  KernelOffer offer = prepare_gradient(
      request, groups, {3, 4, 5, has_more ? 6 : -1, has_result ? 7 : -1},
      {images, DataType::kFloat32, cotangents}, FusedNormalization::read(request.node),
      /*is_fused=*/true);
  // Cotangents are read again after the sums: each is read before its place is written.
  const int stored = request.has_output(3) ? 3 : 0;
  offer.kernel.in_place = {{0, stored}};
  if (has_more) offer.kernel.in_place.emplace_back(6, stored);
  if (images == cotangents) offer.kernel.in_place.emplace_back(1, 0);
  if (is_last) set_channels_last(request, request.inputs[1].dims, offer);
  return offer;
}

}  // namespace

void register_batch_normalization_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "BatchNormalization", 0, offer_batch);
  registry.add("", "InstanceNormalization", 0, offer_instance);
  registry.add(ir::kFunctionDomain, "BatchNormalizationGrad", 0, offer_batch_grad);
  registry.add(ir::kFunctionDomain, "InstanceNormalizationGrad", 0, offer_instance_grad);
  registry.add(ir::kFusedDomain, opdef::kFusedNormalization, 0, offer_fused);
  registry.add(ir::kFusedDomain, opdef::kFusedNormalizationGrad, 0, offer_fused_grad);
}

}  // namespace onnxgrad::ops::batch_normalization_cuda
