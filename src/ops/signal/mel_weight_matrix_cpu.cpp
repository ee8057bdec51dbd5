#include <cmath>
#include <cstring>
#include <vector>

#include "onnxgrad/error.h"
#include "opdef/kernel.h"
#include "ops/kernel_support.h"

// MelWeightMatrix: triangular filters over the bins of a spectrum, equally spaced on the mel scale.
// The matrix is computed at plan time.

namespace onnxgrad::ops::mel_weight_matrix_cpu {
namespace {

// Mel scale: O'Shaughnessy, Speech Communication, 1987.
double to_mel(double hertz) { return 2595 * std::log10(1 + hertz / 700); }
double to_hertz(double mel) { return 700 * (std::pow(10, mel / 2595) - 1); }

struct MelSpec {
  std::int64_t mel_bins = 0;
  std::int64_t dft_length = 0;
  double sample_rate = 1;
  double low_hertz = 0;
  double high_hertz = 0;
};

// Returns the bin of the spectrum at each edge of the triangles.
std::vector<std::int64_t> edges(const MelSpec& spec) {
  const double low = to_mel(spec.low_hertz);
  const double step = (to_mel(spec.high_hertz) - low) / static_cast<double>(spec.mel_bins + 2);
  std::vector<std::int64_t> bins;
  for (std::int64_t i = 0; i < spec.mel_bins + 2; ++i) {
    const double hertz = to_hertz(low + static_cast<double>(i) * step);
    const double bin = static_cast<double>(spec.dft_length + 1) * hertz / spec.sample_rate;
    bins.push_back(static_cast<std::int64_t>(std::floor(bin)));
  }
  return bins;
}

// Returns the matrix [dft_length / 2 + 1, mel_bins].
Tensor mel_matrix(const MelSpec& spec) {
  const std::int64_t rows = spec.dft_length / 2 + 1;
  Tensor matrix = Tensor::zeros(DataType::kFloat64, Dims{rows, spec.mel_bins});
  const auto weights = matrix.mutable_data<double>();
  const std::vector<std::int64_t> bins = edges(spec);
  for (std::int64_t i = 0; i < spec.mel_bins; ++i) {
    const std::int64_t low = bins[static_cast<std::size_t>(i)];
    const std::int64_t centre = bins[static_cast<std::size_t>(i) + 1];
    const std::int64_t high = bins[static_cast<std::size_t>(i) + 2];
    const auto set = [&](std::int64_t row, double weight) {
      if (row < 0 || row >= rows) return;
      weights[static_cast<std::size_t>(row * spec.mel_bins + i)] = weight;
    };
    const auto rise = static_cast<double>(centre - low);
    const auto fall = static_cast<double>(high - centre);
    if (centre == low) set(centre, 1);
    for (std::int64_t j = low; j <= centre && centre > low; ++j) {
      set(j, static_cast<double>(j - low) / rise);
    }
    for (std::int64_t j = centre; j < high; ++j) set(j, static_cast<double>(high - j) / fall);
  }
  return matrix;
}

void run_constant(const Tensor& matrix, KernelArgs args) {
  std::memcpy(args[5], matrix.raw(), static_cast<std::size_t>(matrix.size_bytes()));
}

KernelOffer offer_mel(const KernelRequest& request) {
  std::vector<double> numbers;
  for (std::size_t i = 0; i < 5; ++i) {
    const Tensor* given = request.constants[i];
    if (given == nullptr || given->num_elements() != 1) {
      return KernelOffer::decline("its inputs are not known before the step runs");
    }
    numbers.push_back(given->to_doubles().front());
  }
  const MelSpec spec{.mel_bins = static_cast<std::int64_t>(numbers[0]),
                     .dft_length = static_cast<std::int64_t>(numbers[1]),
                     .sample_rate = numbers[2],
                     .low_hertz = numbers[3],
                     .high_hertz = numbers[4]};
  constexpr double kMost = 1e7;
  const bool fits = spec.mel_bins >= 1 && numbers[0] < kMost && spec.dft_length >= 1 &&
                    numbers[1] < kMost && spec.sample_rate > 0 && spec.low_hertz >= 0 &&
                    spec.high_hertz >= spec.low_hertz && spec.high_hertz <= spec.sample_rate;
  if (!fits) {
    throw ModelError({.what = "the numbers of bins and the frequencies are inconsistent",
                      .where = {.node = request.node.name, .op_type = request.node.op_type},
                      .hint = "Give positive counts and 0 <= lower_edge_hertz <= upper_edge_hertz "
                              "<= sample_rate."});
  }
  const DataType dtype = request.outputs[0].dtype;
  if (element_bytes(dtype) == 0) return decline_dtype(request, dtype);
  return prepared<run_constant>(mel_matrix(spec).cast(dtype), "constant");
}

}  // namespace

void register_mel_weight_matrix_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "MelWeightMatrix", 0, offer_mel);
}

}  // namespace onnxgrad::ops::mel_weight_matrix_cpu
