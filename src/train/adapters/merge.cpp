#include "train/adapters/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/check.h"

namespace onnxgrad::train {
namespace {

using Numbers = std::vector<double>;

// scale * A B for A [rows, rank] and B [rank, columns].
Numbers low_rank(const Numbers& a, const Numbers& b, std::size_t rank, double scale) {
  const std::size_t rows = a.size() / rank;
  const std::size_t columns = b.size() / rank;
  Numbers result(rows * columns, 0.0);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t k = 0; k < rank; ++k) {
      const double factor = scale * a[(i * rank) + k];
      for (std::size_t j = 0; j < columns; ++j) {
        result[(i * columns) + j] += factor * b[(k * columns) + j];
      }
    }
  }
  return result;
}

/// A weight while adapters are merged into it, [rows, columns] as it is stored.
class MergedWeight {
 public:
  MergedWeight(std::string name, const Tensor& stored)
      : name_(std::move(name)), dtype_(stored.dtype()), dims_(stored.dims()) {
    if (!is_floating(dtype_)) {
      throw ModelError(
          {.what =
               fmt::format("the adapter of '{}' cannot be merged: the weight is quantized", name_),
           .where = {.value = name_},
           .hint = "Save the model with its adapters, and then make its weights float ones as they "
                   "are merged: 'onnxgrad convert saved.onnx --dequantize-weights --merge', in "
                   "Python 'merge(dequantize=True)', in C++ dequantize_weights() before."});
    }
    numbers_ = stored.to_doubles();
  }

  void merge(const RecordedLayer& layer, const RecordedAdapter& adapter, const WeightFn& weight_of);
  void scale_all(const Numbers& factors) {
    if (numbers_.size() != factors.size()) {
      throw ModelError({.what = fmt::format("the factors of an adapter cannot be merged into the "
                                            "bias '{}' of {} elements",
                                            name_, numbers_.size()),
                        .where = {.value = name_},
                        .hint = "Save the model with its adapters."});
    }
    for (std::size_t i = 0; i < numbers_.size(); ++i) numbers_[i] *= factors[i % factors.size()];
  }
  NamedTensor take() const { return {name_, Tensor::from(numbers_, dims_).cast(dtype_)}; }

 private:
  // Number of the element's column in the layer, which computes x W with W [inputs, outputs].
  std::size_t output_of(std::size_t i, bool is_transposed) const {
    const auto columns = static_cast<std::size_t>(dims_.product(1, dims_.rank()));
    return is_transposed || is_kernel() ? i / columns : i % columns;
  }
  std::size_t input_of(std::size_t i, bool is_transposed) const {
    const auto inner = static_cast<std::size_t>(dims_.product(2, dims_.rank()));
    const auto columns = static_cast<std::size_t>(dims_[1]);
    return is_transposed || is_kernel() ? i / inner % columns : i / columns;
  }
  bool is_kernel() const { return dims_.rank() > 2; }  // [outputs, inputs, ...]
  void merge_magnitude(const RecordedLayer& layer, const Numbers& magnitude);

  std::string name_;
  DataType dtype_;
  Dims dims_;
  Numbers numbers_;
};

void MergedWeight::merge(const RecordedLayer& layer, const RecordedAdapter& adapter,
                         const WeightFn& weight_of) {
  if (!layer.factors.empty()) {
    const Numbers factors = weight_of(layer.factors).to_doubles();
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      numbers_[i] *= factors[layer.scales_inputs ? input_of(i, layer.is_transposed)
                                                 : output_of(i, layer.is_transposed)];
    }
    return;
  }
  const Tensor a = weight_of(layer.a);
  const Tensor b = weight_of(layer.b);
  const auto rank = static_cast<std::size_t>(rank_of(adapter, layer));
  const double scale = scale_of(adapter, layer);
  const bool is_convolution = a.dims().rank() > 2;
  // B of a convolution is [outputs, rank, 1, ...] and A [rank, inputs, ...].
  const Numbers change = is_convolution ? low_rank(b.to_doubles(), a.to_doubles(), rank, scale)
                                        : low_rank(a.to_doubles(), b.to_doubles(), rank, scale);
  if (change.size() != numbers_.size()) {
    throw ModelError({.what = fmt::format("the adapter of '{}' is not of the size of the weight "
                                          "'{}'",
                                          base::printable(layer.module), name_),
                      .where = {.value = name_},
                      .hint = "The record of the model's adapters is damaged: use the model as it "
                              "was written."});
  }
  if (!layer.is_transposed) {
    for (std::size_t i = 0; i < change.size(); ++i) numbers_[i] += change[i];
  } else {
    const auto rows = static_cast<std::size_t>(dims_[0]);
    const auto columns = static_cast<std::size_t>(dims_[1]);
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      numbers_[i] += change[((i % columns) * rows) + (i / columns)];
    }
  }
  if (!layer.magnitude.empty()) merge_magnitude(layer, weight_of(layer.magnitude).to_doubles());
}

void MergedWeight::merge_magnitude(const RecordedLayer& layer, const Numbers& magnitude) {
  Numbers squares(magnitude.size(), 0.0);
  for (std::size_t i = 0; i < numbers_.size(); ++i) {
    squares[output_of(i, layer.is_transposed)] += numbers_[i] * numbers_[i];
  }
  for (std::size_t i = 0; i < numbers_.size(); ++i) {
    const std::size_t column = output_of(i, layer.is_transposed);
    if (squares[column] > 0) numbers_[i] *= magnitude[column] / std::sqrt(squares[column]);
  }
}

}  // namespace

NamedTensors merged_weights(const std::vector<RecordedAdapter>& adapters,
                            const WeightFn& weight_of) {
  std::vector<std::pair<std::string, MergedWeight>> merged;
  const auto find = [&](const std::string& name) -> MergedWeight& {
    const auto known = std::ranges::find(merged, name, &decltype(merged)::value_type::first);
    if (known != merged.end()) return known->second;
    return merged.emplace_back(name, MergedWeight(name, weight_of(name))).second;
  };
  // The last adapter is the nearest to the weight.
  for (auto adapter = adapters.rbegin(); adapter != adapters.rend(); ++adapter) {
    for (const RecordedLayer& layer : adapter->layers) {
      find(layer.weight).merge(layer, *adapter, weight_of);
      if (layer.factors.empty() || layer.scales_inputs) continue;
      std::vector<std::string> scaled;
      for (const AdapterSite& site : layer.sites) {
        if (site.bias.empty() || std::ranges::find(scaled, site.bias) != scaled.end()) continue;
        find(site.bias).scale_all(weight_of(layer.factors).to_doubles());
        scaled.push_back(site.bias);
      }
    }
  }
  NamedTensors result;
  for (const auto& [name, weight] : merged) result.push_back(weight.take());
  return result;
}

}  // namespace onnxgrad::train
