#include "cudnn_operations.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

#include "device/cuda/dnn_api.h"
#include "hooks.h"
#include "numbers.h"

namespace onnxgrad::cuda_standin {
namespace {

namespace api = onnxgrad::device::cuda::dnn_api;
using Sizes = std::vector<std::int64_t>;

constexpr int kIllegal = 700;

std::int64_t product(const Sizes& dims) {
  std::int64_t all = 1;
  for (const std::int64_t dim : dims) all *= dim;
  return all;
}

std::size_t bytes_of(int type) {
  switch (type) {
    case api::kDataDouble:
      return 8;
    case api::kDataHalf:
    case api::kDataBfloat16:
      return 2;
    default:
      return 4;
  }
}

double load(const std::byte* from, int type) {
  std::uint16_t bits = 0;
  switch (type) {
    case api::kDataDouble:
      return *reinterpret_cast<const double*>(from);
    case api::kDataHalf:
    case api::kDataBfloat16:
      std::memcpy(&bits, from, sizeof bits);
      return type == api::kDataHalf ? half_value(bits) : bfloat16_value(bits);
    case api::kDataInt32:
      return *reinterpret_cast<const std::int32_t*>(from);
    default:
      return *reinterpret_cast<const float*>(from);
  }
}

void store(std::byte* to, int type, double value) {
  if (type == api::kDataDouble) {
    *reinterpret_cast<double*>(to) = value;
  } else if (type == api::kDataHalf || type == api::kDataBfloat16) {
    const std::uint16_t bits = type == api::kDataHalf ? half_bits(value) : bfloat16_bits(value);
    std::memcpy(to, &bits, sizeof bits);
  } else {
    *reinterpret_cast<float*>(to) = static_cast<float>(value);
  }
}

double rounded_to(double value, int type) {
  switch (type) {
    case api::kDataHalf:
      return half_value(half_bits(value));
    case api::kDataBfloat16:
      return bfloat16_value(bfloat16_bits(value));
    case api::kDataFloat:
      return static_cast<float>(value);
    default:
      return value;
  }
}

// Calls f(element, position) for all positions of a tensor, in row-major order.
template <class F>
void for_each(const Sizes& dims, const F& f) {
  Sizes at(dims.size(), 0);
  const std::int64_t count = product(dims);
  for (std::int64_t i = 0; i < count; ++i) {
    f(i, at);
    for (std::size_t axis = dims.size(); axis-- > 0;) {
      if (++at[axis] < dims[axis]) break;
      at[axis] = 0;
    }
  }
}

std::int64_t offset(const Sizes& at, const Sizes& strides) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < at.size(); ++i) sum += at[i] * strides[i];
  return sum;
}

// Elements from the first to behind the last one in memory.
std::int64_t extent(const DnnTensor& tensor) {
  std::int64_t last = 0;
  for (std::size_t i = 0; i < tensor.dims.size(); ++i) {
    last += (tensor.dims[i] - 1) * tensor.strides[i];
  }
  return last + 1;
}

/// The values of all tensors while a graph runs, in row-major order.
class Run {
 public:
  Run(bool rounds, const std::map<std::int64_t, std::uint64_t>& addresses)
      : rounds_(rounds), addresses_(addresses) {}

  bool has_failed() const { return has_failed_; }

  const std::vector<double>& read(const DnnTensor& tensor) {
    const auto known = values_.find(tensor.uid);
    if (known != values_.end()) return known->second;
    std::vector<double>& values = values_[tensor.uid];
    values.resize(static_cast<std::size_t>(product(tensor.dims)));
    const std::byte* memory = nullptr;
    if (tensor.is_by_value) {
      memory = reinterpret_cast<const std::byte*>(addresses_.at(tensor.uid));
    } else if (!tensor.is_virtual) {
      memory = place_of(tensor);
    }
    if (memory == nullptr) {
      has_failed_ = true;
      return values;
    }
    for_each(tensor.dims, [&](std::int64_t i, const Sizes& at) {
      const auto place = static_cast<std::size_t>(offset(at, tensor.strides));
      values[static_cast<std::size_t>(i)] =
          load(memory + place * bytes_of(tensor.type), tensor.type);
    });
    return values;
  }

  // As a factor of a product.
  std::vector<double> factors(const DnnTensor& tensor) {
    std::vector<double> values = read(tensor);
    const bool is_wide = tensor.type == api::kDataDouble;
    if (rounds_ && !is_wide) std::ranges::transform(values, values.begin(), tf32);
    return values;
  }

  void write(const DnnTensor& tensor, std::vector<double> values) {
    for (double& value : values) value = rounded_to(value, tensor.type);
    if (!tensor.is_virtual) {
      std::byte* const memory = place_of(tensor);
      if (memory == nullptr) {
        has_failed_ = true;
        return;
      }
      for_each(tensor.dims, [&](std::int64_t i, const Sizes& at) {
        const auto place = static_cast<std::size_t>(offset(at, tensor.strides));
        store(memory + place * bytes_of(tensor.type), tensor.type,
              values[static_cast<std::size_t>(i)]);
      });
    }
    values_[tensor.uid] = std::move(values);
  }

  void convolve(const DnnOperation& op);
  void compute(const DnnOperation& op);
  void multiply(const DnnOperation& op);
  void reduce(const DnnOperation& op);
  void pool(const DnnOperation& op);
  void reshape(const DnnOperation& op);

 private:
  std::byte* place_of(const DnnTensor& tensor) const {
    const auto at = addresses_.find(tensor.uid);
    if (at == addresses_.end()) return nullptr;
    return card_memory(at->second,
                       static_cast<std::size_t>(extent(tensor)) * bytes_of(tensor.type));
  }

  bool rounds_;
  const std::map<std::int64_t, std::uint64_t>& addresses_;
  std::map<std::int64_t, std::vector<double>> values_;
  bool has_failed_ = false;
};

void Run::convolve(const DnnOperation& op) {
  const bool is_forward = op.type == api::kForward;
  const bool is_data = op.type == api::kBackwardData;
  const DnnTensor& target = is_forward ? op.y : is_data ? op.x : op.b;
  const std::vector<double> none;
  const std::vector<double> x = is_data ? none : factors(op.x);
  const std::vector<double> w = !is_forward && !is_data ? none : factors(op.b);
  const std::vector<double> dy = is_forward ? none : factors(op.y);
  std::vector<double> sums(static_cast<std::size_t>(product(target.dims)));
  // Two spatial axes are three with a leading one.
  const bool is_flat = op.x.dims.size() == 4;
  const auto axis = [&](const Sizes& list, std::size_t i, std::size_t from, std::int64_t absent) {
    return is_flat ? (i == 0 ? absent : list[from + i - 1]) : list[from + i];
  };
  std::array<std::int64_t, 3> in{}, taps{}, out{};
  for (std::size_t i = 0; i < 3; ++i) {
    in[i] = axis(op.x.dims, i, 2, 1);
    taps[i] = axis(op.b.dims, i, 2, 1);
    out[i] = axis(op.y.dims, i, 2, 1);
  }
  const auto position = [&](std::size_t i, std::int64_t window, std::int64_t tap) {
    return window * axis(op.strides, i, 0, 1) + tap * axis(op.dilations, i, 0, 1) -
           axis(op.begins, i, 0, 0);
  };
  const std::int64_t filters = op.b.dims[0];
  const std::int64_t channels = op.b.dims[1];
  const std::int64_t groups = op.x.dims[1] / channels;
  const std::int64_t windows = out[0] * out[1] * out[2];
  const std::int64_t all_taps = taps[0] * taps[1] * taps[2];
  for (std::int64_t n = 0; n < op.x.dims[0]; ++n) {
    for (std::int64_t m = 0; m < filters; ++m) {
      const std::int64_t group = m / (filters / groups);
      for (std::int64_t c = 0; c < channels; ++c) {
        const std::int64_t plane = ((n * groups + group) * channels + c) * in[0];
        for (std::int64_t t = 0; t < all_taps; ++t) {
          const auto at_w = static_cast<std::size_t>((m * channels + c) * all_taps + t);
          for (std::int64_t o = 0; o < out[0] * out[1]; ++o) {
            const std::int64_t d = position(0, o / out[1], t / (taps[1] * taps[2]));
            const std::int64_t h = position(1, o % out[1], t / taps[2] % taps[1]);
            if (d < 0 || d >= in[0] || h < 0 || h >= in[1]) continue;
            const std::int64_t row_x = ((plane + d) * in[1] + h) * in[2];
            const std::int64_t row_y = (n * filters + m) * windows + o * out[2];
            const std::int64_t step = axis(op.strides, 2, 0, 1);
            std::int64_t v = position(2, 0, t % taps[2]);
            for (std::int64_t w_out = 0; w_out < out[2]; ++w_out, v += step) {
              if (v < 0 || v >= in[2]) continue;
              const auto at_x = static_cast<std::size_t>(row_x + v);
              const auto at_y = static_cast<std::size_t>(row_y + w_out);
              if (is_forward) {
                sums[at_y] += x[at_x] * w[at_w];
              } else if (is_data) {
                sums[at_x] += dy[at_y] * w[at_w];
              } else {
                sums[at_w] += dy[at_y] * x[at_x];
              }
            }
          }
        }
      }
    }
  }
  write(target, std::move(sums));
}

void Run::compute(const DnnOperation& op) {
  const std::vector<double> x = read(op.x);
  const std::vector<double> b = op.has_b ? read(op.b) : std::vector<double>();
  const std::vector<double> condition =
      op.mode == api::kSelect ? read(op.condition) : std::vector<double>();
  const auto element = [](const DnnTensor& tensor, const Sizes& at) {  // broadcast
    std::int64_t place = 0;
    for (std::size_t i = 0; i < at.size(); ++i) {
      place = place * tensor.dims[i] + (tensor.dims[i] == 1 ? 0 : at[i]);
    }
    return static_cast<std::size_t>(place);
  };
  std::vector<double> y(static_cast<std::size_t>(product(op.y.dims)));
  for_each(op.y.dims, [&](std::int64_t i, const Sizes& at) {
    const double left = x[element(op.x, at)];
    const double right = op.has_b ? b[element(op.b, at)] : 0;
    double& result = y[static_cast<std::size_t>(i)];
    switch (op.mode) {
      case api::kAdd:
        result = left + right;
        break;
      case api::kMultiply:
        result = left * right;
        break;
      case api::kDivide:
        result = left / right;
        break;
      case api::kSubtract:
        result = left - right;
        break;
      case api::kExp:
        result = std::exp(left);
        break;
      case api::kLog:
        result = std::log(left);
        break;
      case api::kReluForward:
        result = left < op.low ? op.low : left > op.high ? op.high : left;
        break;
      case api::kGreaterEqual:
        result = left >= right ? 1 : 0;
        break;
      case api::kIndexOf:
        result = static_cast<double>(at[static_cast<std::size_t>(op.axis)]);
        break;
      case api::kSelect:
        result = condition[element(op.condition, at)] != 0 ? left : right;
        break;
      default:
        result = left;
    }
  });
  write(op.y, std::move(y));
}

void Run::multiply(const DnnOperation& op) {
  const std::vector<double> a = factors(op.x);
  const std::vector<double> b = factors(op.b);
  const std::size_t rank = op.y.dims.size();
  const std::int64_t m = op.y.dims[rank - 2];
  const std::int64_t n = op.y.dims[rank - 1];
  const std::int64_t k = op.x.dims[rank - 1];
  std::vector<double> y(static_cast<std::size_t>(product(op.y.dims)));
  const std::int64_t matrices = product(op.y.dims) / (m * n);
  for (std::int64_t matrix = 0; matrix < matrices; ++matrix) {
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (std::int64_t p = 0; p < k; ++p) {
          sum += a[static_cast<std::size_t>((matrix * m + i) * k + p)] *
                 b[static_cast<std::size_t>((matrix * k + p) * n + j)];
        }
        y[static_cast<std::size_t>((matrix * m + i) * n + j)] = sum;
      }
    }
  }
  write(op.y, std::move(y));
}

void Run::reduce(const DnnOperation& op) {
  const std::vector<double> x = read(op.x);
  const bool is_sum = op.mode == api::kSum;
  std::vector<double> y(static_cast<std::size_t>(product(op.y.dims)),
                        is_sum ? 0 : -std::numeric_limits<double>::infinity());
  for_each(op.x.dims, [&](std::int64_t i, const Sizes& at) {
    std::int64_t place = 0;
    for (std::size_t axis = 0; axis < at.size(); ++axis) {
      place = place * op.y.dims[axis] + (op.y.dims[axis] == 1 ? 0 : at[axis]);
    }
    double& total = y[static_cast<std::size_t>(place)];
    const double value = x[static_cast<std::size_t>(i)];
    total = is_sum ? total + value : std::max(total, value);
  });
  write(op.y, std::move(y));
}

void Run::pool(const DnnOperation& op) {
  const bool is_forward = op.type == api::kResampleForward;
  const bool is_largest = op.mode == api::kMaximumPool;
  const std::vector<double>& from = read(is_forward ? op.x : op.y);
  const DnnTensor& target = is_forward ? op.y : op.x;
  std::vector<double> results(static_cast<std::size_t>(product(target.dims)));
  // Two spatial axes are three with a leading one.
  const bool is_flat = op.x.dims.size() == 4;
  const auto axis = [&](const Sizes& list, std::size_t i, std::size_t first, std::int64_t absent) {
    return is_flat ? (i == 0 ? absent : list[first + i - 1]) : list[first + i];
  };
  std::array<std::int64_t, 3> in{}, out{}, taps{}, strides{}, begins{};
  for (std::size_t i = 0; i < 3; ++i) {
    in[i] = axis(op.x.dims, i, 2, 1);
    out[i] = axis(op.y.dims, i, 2, 1);
    taps[i] = axis(op.window, i, 0, 1);
    strides[i] = axis(op.strides, i, 0, 1);
    begins[i] = axis(op.begins, i, 0, 0);
  }
  const std::int64_t windows = out[0] * out[1] * out[2];
  for (std::int64_t o = 0; o < op.y.dims[0] * op.y.dims[1] * windows; ++o) {
    const std::array<std::int64_t, 3> at{o % windows / (out[1] * out[2]), o / out[2] % out[1],
                                         o % out[2]};
    std::array<std::int64_t, 3> first{}, end{};
    for (std::size_t i = 0; i < 3; ++i) {
      const std::int64_t start = at[i] * strides[i] - begins[i];
      first[i] = std::max<std::int64_t>(start, 0);
      end[i] = std::min(start + taps[i], in[i]);
    }
    const std::int64_t inside = (end[0] - first[0]) * (end[1] - first[1]) * (end[2] - first[2]);
    const auto divisor =
        static_cast<double>(op.mode == api::kAverage ? inside : taps[0] * taps[1] * taps[2]);
    double value = is_largest ? -std::numeric_limits<double>::infinity() : 0;
    for (std::int64_t d = first[0]; d < end[0]; ++d) {
      for (std::int64_t h = first[1]; h < end[1]; ++h) {
        const std::int64_t row = ((o / windows * in[0] + d) * in[1] + h) * in[2];
        for (std::int64_t w = first[2]; w < end[2]; ++w) {
          const auto place = static_cast<std::size_t>(row + w);
          if (!is_forward) {
            results[place] += from[static_cast<std::size_t>(o)] / divisor;
          } else if (is_largest) {
            value = from[place] > value || std::isnan(from[place]) ? from[place] : value;
          } else {
            value += from[place] / divisor;
          }
        }
      }
    }
    if (is_forward) results[static_cast<std::size_t>(o)] = value;
  }
  write(target, std::move(results));
}

void Run::reshape(const DnnOperation& op) {
  const std::vector<double> x = read(op.x);
  std::vector<double> memory(static_cast<std::size_t>(extent(op.x)));
  for_each(op.x.dims, [&](std::int64_t i, const Sizes& at) {
    memory[static_cast<std::size_t>(offset(at, op.x.strides))] = x[static_cast<std::size_t>(i)];
  });
  std::vector<double> y(static_cast<std::size_t>(product(op.y.dims)));
  for_each(op.y.dims, [&](std::int64_t i, const Sizes& at) {
    y[static_cast<std::size_t>(i)] = memory[static_cast<std::size_t>(offset(at, op.y.strides))];
  });
  write(op.y, std::move(y));
}

bool is_dense(const DnnTensor& tensor) { return extent(tensor) == product(tensor.dims); }

bool are_windows(const DnnOperation& op) {
  if (!is_dense(op.x) || !is_dense(op.b) || !is_dense(op.y)) return false;
  const std::size_t rank = op.x.dims.size();
  const std::size_t axes = rank - 2;
  if (rank < 4 || op.b.dims.size() != rank || op.y.dims.size() != rank) return false;
  for (const Sizes* list : {&op.strides, &op.dilations, &op.begins, &op.ends}) {
    if (list->size() != axes) return false;
  }
  const Sizes &x = op.x.dims, &w = op.b.dims, &y = op.y.dims;
  if (x[0] != y[0] || w[0] != y[1] || x[1] % w[1] != 0 || w[0] % (x[1] / w[1]) != 0) return false;
  for (std::size_t i = 0; i < axes; ++i) {
    const std::int64_t window = (w[i + 2] - 1) * op.dilations[i] + 1;
    const std::int64_t room = x[i + 2] + op.begins[i] + op.ends[i] - window;
    if (room < 0 || room / op.strides[i] + 1 != y[i + 2]) return false;
  }
  return true;
}

bool are_pools(const DnnOperation& op) {
  const Sizes &x = op.x.dims, &y = op.y.dims;
  const std::size_t axes = op.window.size();
  if (!is_dense(op.x) || !is_dense(op.y)) return false;
  if (x.size() != axes + 2 || y.size() != axes + 2 || x[0] != y[0] || x[1] != y[1]) return false;
  for (const Sizes* list : {&op.strides, &op.begins, &op.ends}) {
    if (list->size() != axes) return false;
  }
  for (std::size_t i = 0; i < axes; ++i) {
    const std::int64_t room = x[i + 2] + op.begins[i] + op.ends[i] - op.window[i];
    if (room < 0 || room / op.strides[i] + 1 != y[i + 2]) return false;
  }
  return true;
}

bool is_broadcast(const Sizes& from, const Sizes& to) {
  if (from.size() != to.size()) return false;
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (from[i] != to[i] && from[i] != 1) return false;
  }
  return true;
}

}  // namespace

bool is_consistent(const DnnOperation& op) {
  const Sizes &x = op.x.dims, &b = op.b.dims, &y = op.y.dims;
  switch (op.type) {
    case api::kForward:
    case api::kBackwardData:
    case api::kBackwardFilter:
      return are_windows(op);
    case api::kPointwiseOperation:
      return is_broadcast(x, y) && (!op.has_b || is_broadcast(b, y));
    case api::kMatmulOperation: {
      const std::size_t rank = y.size();
      if (rank < 3 || x.size() != rank || b.size() != rank) return false;
      return std::equal(x.begin(), x.end() - 1, y.begin()) && x[rank - 1] == b[rank - 2] &&
             b[rank - 1] == y[rank - 1] && std::equal(b.begin(), b.end() - 2, y.begin());
    }
    case api::kResampleForward:
    case api::kResampleBackward:
      return are_pools(op);
    case api::kReductionOperation:
      return is_broadcast(y, x);
    case api::kReshapeOperation:
      return product(x) == product(y);
    default:
      return false;
  }
}

int run_operations(const std::vector<DnnOperation>& operations, bool rounds,
                   const std::map<std::int64_t, std::uint64_t>& addresses) {
  Run run(rounds, addresses);
  for (const DnnOperation& op : operations) {
    switch (op.type) {
      case api::kPointwiseOperation:
        run.compute(op);
        break;
      case api::kMatmulOperation:
        run.multiply(op);
        break;
      case api::kReductionOperation:
        run.reduce(op);
        break;
      case api::kResampleForward:
      case api::kResampleBackward:
        run.pool(op);
        break;
      case api::kReshapeOperation:
        run.reshape(op);
        break;
      default:
        run.convolve(op);
    }
    if (run.has_failed()) return kIllegal;
  }
  return 0;
}

}  // namespace onnxgrad::cuda_standin
