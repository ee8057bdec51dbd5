#include <algorithm>
#include <cstdint>
#include <vector>

#include "onnxgrad/error.h"
#include "ops/kernel_support.h"

namespace onnxgrad::ops::non_max_suppression_cpu {
namespace {

struct Boxes {
  std::vector<float> low_y, low_x, high_y, high_x, area;

  // Reads boxes as two corners in any order, or as centre, width and height.
  Boxes(std::span<const float> from, bool is_centre) {
    for (std::size_t i = 0; i + 4 <= from.size(); i += 4) {
      const float a = from[i], b = from[i + 1], c = from[i + 2], d = from[i + 3];
      if (is_centre) {
        add(b - d / 2, a - c / 2, b + d / 2, a + c / 2);
      } else {
        add(std::min(a, c), std::min(b, d), std::max(a, c), std::max(b, d));
      }
    }
  }

  // Returns true if the intersection of two boxes is more than `threshold` of their union.
  bool overlap(std::size_t i, std::size_t j, float threshold) const {
    const float height = std::min(high_y[i], high_y[j]) - std::max(low_y[i], low_y[j]);
    const float width = std::min(high_x[i], high_x[j]) - std::max(low_x[i], low_x[j]);
    if (height <= 0 || width <= 0) return false;
    const float shared = height * width;
    const float both = area[i] + area[j] - shared;
    return area[i] > 0 && area[j] > 0 && both > 0 && shared / both > threshold;
  }

 private:
  void add(float y0, float x0, float y1, float x1) {
    low_y.push_back(y0);
    low_x.push_back(x0);
    high_y.push_back(y1);
    high_x.push_back(x1);
    area.push_back((y1 - y0) * (x1 - x0));
  }
};

struct Limits {
  std::int64_t most = 0;
  float overlap = 0;
  bool has_score = false;
  float score = 0;
};

Limits read_limits(const DynamicCall& call) {
  const auto given = [&](std::size_t i) {
    return i < call.inputs.size() && call.inputs[i].is_defined() &&
           call.inputs[i].num_elements() > 0;
  };
  Limits limits;
  if (given(2)) limits.most = call.inputs[2].to_int64s().front();
  if (given(3)) limits.overlap = static_cast<float>(call.inputs[3].to_doubles().front());
  limits.has_score = given(4);
  if (limits.has_score) limits.score = static_cast<float>(call.inputs[4].to_doubles().front());
  return limits;
}

// Returns the indices of the boxes of one class that are kept, best first; the first of equal
// scores.
std::vector<std::size_t> select(const Boxes& boxes, std::span<const float> scores,
                                const Limits& limits) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (!limits.has_score || scores[i] > limits.score) order.push_back(i);
  }
  std::ranges::stable_sort(order,
                           [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  std::vector<std::size_t> taken;
  for (const std::size_t i : order) {
    if (static_cast<std::int64_t>(taken.size()) >= limits.most) break;
    const auto hides = [&](std::size_t j) { return boxes.overlap(i, j, limits.overlap); };
    if (std::ranges::none_of(taken, hides)) taken.push_back(i);
  }
  return taken;
}

// boxes [N, B, 4], scores [N, C, B] -> rows (image, class, box).
std::vector<Tensor> run_suppression(const DynamicCall& call) {
  const Tensor& boxes = call.inputs.at(0);
  const Tensor& scores = call.inputs.at(1);
  const Dims& b = boxes.dims();
  const Dims& s = scores.dims();
  if (b.rank() != 3 || s.rank() != 3 || b[2] != 4 || b[0] != s[0] || b[1] != s[2]) {
    throw ShapeError({.what = "boxes " + b.to_string() + " do not fit scores " + s.to_string(),
                      .where = {.node = call.node.name, .op_type = "NonMaxSuppression"},
                      .hint = "Give boxes [N, B, 4] and scores [N, classes, B]."});
  }
  const Limits limits = read_limits(call);
  const bool is_centre = call.node.int_attribute("center_point_box", 0) != 0;
  std::vector<std::int64_t> rows;
  const auto count = static_cast<std::size_t>(b[1]);
  for (std::int64_t n = 0; n < b[0]; ++n) {
    const auto image = static_cast<std::size_t>(n);
    const Boxes own(boxes.data<float>().subspan(image * count * 4, count * 4), is_centre);
    for (std::int64_t c = 0; c < s[1]; ++c) {
      const auto first = static_cast<std::size_t>(n * s[1] + c) * count;
      for (const std::size_t i : select(own, scores.data<float>().subspan(first, count), limits)) {
        rows.insert(rows.end(), {n, c, static_cast<std::int64_t>(i)});
      }
    }
  }
  const auto selected = static_cast<std::int64_t>(rows.size()) / 3;
  return {Tensor::from(rows, Dims{selected, 3})};
}

}  // namespace

void register_non_max_suppression_cpu(opdef::KernelRegistry& registry) {
  registry.add_dynamic("", "NonMaxSuppression", run_suppression);
}

}  // namespace onnxgrad::ops::non_max_suppression_cpu
