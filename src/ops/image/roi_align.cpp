#include <limits>
#include <optional>
#include <vector>

#include "opdef/registry.h"
#include "ops/rules.h"

// RoiAlign and MaxRoiPool: gathers channel vectors at the pixels that the bins of each region read,
// weights them, and averages or takes the maximum. The gradients of Gather and of the weights,
// which are functions of the regions, follow.

namespace onnxgrad::ops::roi_align_op {
namespace {

// Reshapes x [N, C, H, W] to rows of channels, [N H W, C].
Value* channel_rows(GraphBuilder& g, Value* x) {
  Value* pixels = g.mul(g.mul(dim_value(g, x, 0), dim_value(g, x, 2)), dim_value(g, x, 3));
  return g.reshape(g.transpose(x, {0, 2, 3, 1}), g.concat({pixels, dim_value(g, x, 1)}, 0));
}

// Returns column `i` of regions [R, columns]: [R].
Value* column(GraphBuilder& g, Value* rois, std::int64_t i) {
  return g.squeeze(g.slice(rois, {i}, {i + 1}, {1}), {1});
}

// Returns 0, 1, ... as [count] of like's dtype; `count` is int64 [1].
Value* steps(GraphBuilder& g, Value* count, Value* like) {
  return g.cast_like(range_value(g, g.ints({0}), count), like);
}

// Returns the maximum of `numbers`, at least 1, int64 [1]; `numbers` may be empty.
Value* largest(GraphBuilder& g, Value* numbers) {
  Value* all = g.concat({g.cast(numbers, DataType::kInt64), g.ints({1})}, 0);
  return g.reduce_max(all, {0}, /*keepdims=*/true);
}

// Samples of the bins of the regions along one axis, [R, bins, samples, 2].
struct AlignAxis {
  Value* index = nullptr;     // int64: the pixels before and after each sample
  Value* weight = nullptr;    // 0 for samples outside the image
  Value* is_taken = nullptr;  // bool [R, samples]: false for unused samples; nullptr: all are used
  Value* count = nullptr;     // [R]: samples per bin; nullptr: `samples`
  double samples = 0;
};

AlignAxis align_axis(const Node& node, GraphBuilder& g, Value* begin, Value* end, std::int64_t bins,
                     Value* size) {
  const bool half_pixel = node.string_attribute("coordinate_transformation_mode") == "half_pixel";
  const double scale = node.float_attribute("spatial_scale");
  Value* shift = g.scalar_like(begin, half_pixel ? 0.5 : 0.0);
  Value* start = g.sub(g.scale(begin, scale), shift);
  Value* length = g.sub(g.sub(g.scale(end, scale), shift), start);
  if (!half_pixel) length = g.op("Max", {length, g.scalar_like(begin, 1)});
  Value* bin = g.scale(length, 1 / static_cast<double>(bins));

  AlignAxis axis;
  const std::int64_t ratio = node.int_attribute("sampling_ratio");
  Value* samples = g.ints({ratio});
  Value* per_sample = nullptr;  // [R]: distance between samples
  if (ratio > 0) {
    axis.samples = static_cast<double>(ratio);
    per_sample = g.scale(bin, 1 / axis.samples);
  } else {
    axis.count = g.op("Ceil", {bin});
    samples = largest(g, axis.count);
    Value* safe = g.op("Max", {axis.count, g.scalar_like(begin, 1)});
    per_sample = g.div(bin, safe);
    axis.is_taken = g.less(steps(g, samples, begin), g.unsqueeze(axis.count, {1}));
  }
  Value* bin_starts = g.mul(g.unsqueeze(bin, {1}), steps(g, g.ints({bins}), begin));  // [R, bins]
  Value* middles = g.add(steps(g, samples, begin), g.scalar_like(begin, 0.5));
  Value* within = g.mul(g.unsqueeze(per_sample, {1, 2}), middles);  // [R, 1, samples]
  Value* place = g.add(g.add(g.unsqueeze(start, {1, 2}), g.unsqueeze(bin_starts, {2})), within);

  Value* extent = g.cast_like(size, begin);
  Value* last = g.sub(extent, g.scalar_like(begin, 1));
  Value* zero = g.scalar_like(begin, 0);
  Value* is_inside = g.op("And", {g.op("GreaterOrEqual", {place, g.scalar_like(begin, -1)}),
                                  g.op("LessOrEqual", {place, extent})});
  if (axis.is_taken != nullptr) {
    is_inside = g.op("And", {is_inside, g.unsqueeze(axis.is_taken, {1})});
  }
  Value* clamped = g.op("Min", {g.op("Max", {place, zero}), last});
  // Positions that rounding has left just below a whole number count as whole, so that all kinks of
  // the weights have the slope to the right.
  Value* low = g.op("Floor", {g.add(clamped, g.scalar_like(begin, 0x1p-40))});
  Value* high = g.op("Min", {g.add(low, g.scalar_like(begin, 1)), last});
  Value* fraction = g.sub(clamped, low);
  const auto pair = [&](Value* a, Value* b) {
    return g.concat({g.unsqueeze(a, {3}), g.unsqueeze(b, {3})}, 3);
  };
  axis.index = g.cast(pair(low, high), DataType::kInt64);
  axis.weight = g.where(g.unsqueeze(is_inside, {3}),
                        pair(g.sub(g.scalar_like(begin, 1), fraction), fraction), zero);
  return axis;
}

// Returns the rows among [N H W] for all pairs of y [R, ...] and x [R, ...], with three axes each
// after the first, in images `batch` [R]: int64 [R, y..., x...].
Value* pixel_rows(GraphBuilder& g, Value* x, Value* batch, Value* iy, Value* ix,
                  std::int64_t axes) {
  std::vector<std::int64_t> behind;  // axes of x
  std::vector<std::int64_t> before;  // axes of y
  std::vector<std::int64_t> all;
  for (std::int64_t i = 1; i <= axes; ++i) {
    before.push_back(i);
    behind.push_back(axes + i);
    all.push_back(i);
  }
  Value* image = g.unsqueeze(g.mul(batch, dim_value(g, x, 2)), all);
  Value* rows = g.mul(g.add(image, iy), dim_value(g, x, 3));
  return g.add(g.unsqueeze(rows, behind), g.unsqueeze(ix, before));
}

// Pools the samples. avg: sum of weight * pixel over samples and neighbours, divided by the number
// of samples. max: the largest weighted pixel.
Value* pooled(const Node& node, GraphBuilder& g, Value* products, const AlignAxis& y,
              const AlignAxis& x) {
  const std::vector<std::int64_t> sampled = {2, 3, 5, 6};  // axes of [R, PH, SY, 2, PW, SX, 2, C]
  if (node.string_attribute("mode") == "max") {
    if (y.is_taken == nullptr) return g.reduce_max(products, sampled, /*keepdims=*/false);
    Value* is_taken = g.op("And", {g.unsqueeze(y.is_taken, {1, 3, 4, 5, 6, 7}),
                                   g.unsqueeze(x.is_taken, {1, 2, 3, 4, 6, 7})});
    Value* least = g.scalar_like(products, -std::numeric_limits<double>::infinity());
    Value* most = g.reduce_max(g.where(is_taken, products, least), sampled, /*keepdims=*/false);
    Value* zero = g.scalar_like(products, 0);
    Value* has_any = g.op("And", {g.greater(y.count, zero), g.greater(x.count, zero)});
    return g.where(g.unsqueeze(has_any, {1, 2, 3}), most, zero);
  }
  Value* sum = g.reduce_sum(products, sampled, /*keepdims=*/false);
  if (y.count == nullptr) return g.scale(sum, 1 / (y.samples * x.samples));
  Value* one = g.scalar_like(sum, 1);
  Value* count = g.op("Max", {g.mul(y.count, x.count), one});
  return g.div(sum, g.unsqueeze(count, {1, 2, 3}));
}

std::optional<std::vector<Value*>> lower_roi_align(const Node& node, GraphBuilder& g) {
  Value* x = node.inputs[0];
  Value* rois = node.inputs[1];
  if (known_rank(x) != 4 || known_rank(rois) != 2) return std::nullopt;
  const AlignAxis rows = align_axis(node, g, column(g, rois, 1), column(g, rois, 3),
                                    node.int_attribute("output_height"), dim_value(g, x, 2));
  const AlignAxis columns = align_axis(node, g, column(g, rois, 0), column(g, rois, 2),
                                       node.int_attribute("output_width"), dim_value(g, x, 3));
  Value* places =
      pixel_rows(g, x, g.cast(node.inputs[2], DataType::kInt64), rows.index, columns.index, 3);
  Value* weights =
      g.mul(g.unsqueeze(rows.weight, {4, 5, 6, 7}), g.unsqueeze(columns.weight, {1, 2, 3, 7}));
  Value* products = g.mul(g.gather(channel_rows(g, x), places, 0), weights);
  return {{g.transpose(pooled(node, g, products, rows, columns), {0, 3, 1, 2})}};
}

// Pixels of each bin along one axis, int64 [R, bins, S]; short bins repeat their last pixel. Bins
// without pixels read pixel 0 and are marked in `is_empty`, bool [R, bins].
struct PoolAxis {
  Value* index = nullptr;
  Value* is_empty = nullptr;
};

PoolAxis pool_axis(const Node& node, GraphBuilder& g, Value* begin, Value* end, std::int64_t bins,
                   Value* size) {
  const double scale = node.float_attribute("spatial_scale");
  // Rounds half away from zero.
  const auto rounded = [&](Value* v) {
    Value* scaled = g.scale(v, scale);
    Value* half = g.scalar_like(v, 0.5);
    return g.mul(g.sign(scaled), g.op("Floor", {g.add(g.abs(scaled), half)}));
  };
  Value* one = g.scalar_like(begin, 1);
  Value* zero = g.scalar_like(begin, 0);
  Value* start = rounded(begin);
  Value* length = g.op("Max", {g.add(g.sub(rounded(end), start), one), one});
  Value* bin = g.unsqueeze(g.scale(length, 1 / static_cast<double>(bins)), {1});  // [R, 1]
  Value* numbers = steps(g, g.ints({bins}), begin);
  Value* extent = g.cast_like(size, begin);
  const auto bounded = [&](Value* v) {
    return g.op("Min", {g.op("Max", {g.add(v, g.unsqueeze(start, {1})), zero}), extent});
  };
  Value* first = bounded(g.op("Floor", {g.mul(numbers, bin)}));
  Value* stop = bounded(g.op("Ceil", {g.mul(g.add(numbers, one), bin)}));
  Value* count = g.sub(stop, first);
  Value* samples = largest(g, g.reshape(count, {-1}));
  Value* places = g.add(g.unsqueeze(first, {2}), steps(g, samples, begin));
  Value* last = g.op("Max", {g.sub(stop, one), zero});
  places = g.op("Min", {places, g.unsqueeze(last, {2})});
  return {.index = g.cast(places, DataType::kInt64),
          .is_empty = g.op("LessOrEqual", {count, zero})};
}

std::optional<std::vector<Value*>> lower_max_roi_pool(const Node& node, GraphBuilder& g) {
  Value* x = node.inputs[0];
  Value* rois = node.inputs[1];
  if (known_rank(x) != 4 || known_rank(rois) != 2) return std::nullopt;
  const std::vector<std::int64_t> shape = node.ints_attribute("pooled_shape");
  const PoolAxis rows =
      pool_axis(node, g, column(g, rois, 2), column(g, rois, 4), shape[0], dim_value(g, x, 2));
  const PoolAxis columns =
      pool_axis(node, g, column(g, rois, 1), column(g, rois, 3), shape[1], dim_value(g, x, 3));
  Value* batch = g.cast(column(g, rois, 0), DataType::kInt64);
  Value* places = pixel_rows(g, x, batch, rows.index, columns.index, 2);
  Value* pixels = g.gather(channel_rows(g, x), places, 0);  // [R, PH, SY, PW, SX, C]
  Value* most = g.reduce_max(pixels, {2, 4}, /*keepdims=*/false);
  Value* is_empty =
      g.op("Or", {g.unsqueeze(rows.is_empty, {2, 3}), g.unsqueeze(columns.is_empty, {1, 3})});
  return {{g.transpose(g.where(is_empty, g.scalar_like(most, 0), most), {0, 3, 1, 2})}};
}

}  // namespace

void register_roi_align(opdef::OpRegistry& registry) {
  const auto size = [](std::string_view name) {
    return AttributeSpec{.name = name, .min = 1, .max = 1 << 20, .default_value = std::int64_t{1}};
  };
  registry.add(
      {.op_type = "RoiAlign",
       .since_version = 22,
       .attributes =
           {choice_attribute("mode", {"avg", "max"}),
            choice_attribute("coordinate_transformation_mode", {"half_pixel", "output_half_pixel"}),
            size("output_height"),
            size("output_width"),
            {.name = "sampling_ratio", .min = 0, .max = 1 << 10, .default_value = std::int64_t{0}},
            float_attribute("spatial_scale", 1.0F)},
       .lower = lower_roi_align});
  registry.add({.op_type = "MaxRoiPool",
                .since_version = 22,
                .attributes = {{.name = "pooled_shape",
                                .type = AttributeType::kInts,
                                .required = true,
                                .min = 1,
                                .max = 1 << 20,
                                .min_count = 2,
                                .max_count = 2},
                               float_attribute("spatial_scale", 1.0F)},
                .lower = lower_max_roi_pool});
}

}  // namespace onnxgrad::ops::roi_align_op
