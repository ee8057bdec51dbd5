// Stands in for cuBLASLt: products by plain loops on the memory of the driver's stand-in, done when
// its streams are. Stricter than the library: attributes that are unknown or have a wrong size,
// layouts that do not fit, addresses that are not aligned and missing workspace are errors. It
// proposes four algorithms, of which the first fails, the second refuses when it runs, and the
// third needs workspace, which it overwrites.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "device/cuda/blas_lt_api.h"
#include "hooks.h"
#include "numbers.h"

namespace {

namespace cuda = onnxgrad::device::cuda;
using onnxgrad::cuda_standin::bfloat16_bits;
using onnxgrad::cuda_standin::bfloat16_value;
using onnxgrad::cuda_standin::card_memory;
using onnxgrad::cuda_standin::half_bits;
using onnxgrad::cuda_standin::half_value;
using onnxgrad::cuda_standin::injected_error;
using onnxgrad::cuda_standin::submit_work;
using onnxgrad::cuda_standin::tf32;

enum Status : int { kOk = 0, kInvalidValue = 7, kExecutionFailed = 13, kNotSupported = 15 };
enum Algorithm : std::uint64_t { kUnusable = 1, kRefuses, kWithWorkspace, kPlain };
constexpr std::size_t kWorkspace = 1 << 12;
constexpr std::uint64_t kMark = 0x0B1A5;  // in algorithms and handles of this library
constexpr int kIllegalAddress = 700;

struct Desc {
  int compute = 0;
  int scale = 0;
  bool transposed_a = false;
  bool transposed_b = false;
  int epilogue = 1;
  std::uint64_t bias = 0;
};

struct Layout {
  int type = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t leading = 0;
  std::int64_t batch = 1;
  std::int64_t stride = 0;
};

struct Preference {
  std::uint64_t workspace = 0;
};

template <class T>
bool take(T& to, const void* from, std::size_t bytes) {
  if (from == nullptr || bytes != sizeof to) return false;
  std::memcpy(&to, from, bytes);
  return true;
}

std::size_t bytes_of(int type) {
  switch (type) {
    case cuda::kReal32F:
      return 4;
    case cuda::kReal64F:
      return 8;
    case cuda::kReal16F:
    case cuda::kReal16BF:
      return 2;
    default:
      return 0;
  }
}

double read(const std::byte* from, int type, std::int64_t i) {
  if (type == cuda::kReal64F) return reinterpret_cast<const double*>(from)[i];
  if (type == cuda::kReal32F) return reinterpret_cast<const float*>(from)[i];
  const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(from)[i];
  return type == cuda::kReal16F ? half_value(bits) : bfloat16_value(bits);
}

void write(std::byte* to, int type, std::int64_t i, double value) {
  if (type == cuda::kReal64F) {
    reinterpret_cast<double*>(to)[i] = value;
    return;
  }
  const auto narrow = static_cast<float>(value);
  if (type == cuda::kReal32F) {
    reinterpret_cast<float*>(to)[i] = narrow;
    return;
  }
  std::uint16_t& bits = reinterpret_cast<std::uint16_t*>(to)[i];
  bits = type == cuda::kReal16F ? half_bits(narrow) : bfloat16_bits(narrow);
}

double rounded(double value, int compute) {
  return compute == cuda::kCompute32FTf32 ? tf32(value) : value;
}

// Bytes from the first to behind the last element of all matrices.
std::size_t extent(const Layout& layout) {
  const std::int64_t last =
      (layout.batch - 1) * layout.stride + (layout.columns - 1) * layout.leading + layout.rows;
  return static_cast<std::size_t>(last) * bytes_of(layout.type);
}

bool fits(const Desc& desc, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  const std::int64_t k = desc.transposed_a ? a.rows : a.columns;
  const bool has_shape = (desc.transposed_a ? a.columns : a.rows) == d.rows &&
                         (desc.transposed_b ? b.columns : b.rows) == k &&
                         (desc.transposed_b ? b.rows : b.columns) == d.columns &&
                         c.rows == d.rows && c.columns == d.columns && c.type == d.type;
  const bool has_batch = a.batch == d.batch && b.batch == d.batch && c.batch == d.batch;
  const bool is_wide = a.type == cuda::kReal64F;
  const bool is_narrow = a.type == cuda::kReal16F || a.type == cuda::kReal16BF;
  const bool has_types = a.type == b.type &&
                         (d.type == a.type || (is_narrow && d.type == cuda::kReal32F)) &&
                         (desc.compute == cuda::kCompute64F) == is_wide &&
                         desc.scale == (is_wide ? cuda::kReal64F : cuda::kReal32F) &&
                         (!is_narrow || desc.compute == cuda::kCompute32F);
  const bool strides = d.batch == 1 || d.stride >= d.rows * d.columns;
  return has_shape && has_batch && has_types && strides;
}

// A factor of a product, its rows [rows, columns] one after the other, or transposed.
std::vector<double> factor(const std::byte* memory, const Layout& layout, std::int64_t batch,
                           bool transposed, int compute) {
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(layout.rows * layout.columns));
  for (std::int64_t i = 0; i < (transposed ? layout.columns : layout.rows); ++i) {
    for (std::int64_t j = 0; j < (transposed ? layout.rows : layout.columns); ++j) {
      const std::int64_t at = transposed ? j + i * layout.leading : i + j * layout.leading;
      values.push_back(rounded(read(memory, layout.type, batch * layout.stride + at), compute));
    }
  }
  return values;
}

int multiply(const Desc& desc, const std::array<Layout, 3>& layouts,
             const std::array<std::uint64_t, 3>& addresses) {
  const auto& [a, b, d] = layouts;
  std::array<std::byte*, 3> memory{};
  for (std::size_t i = 0; i < 3; ++i) {
    memory[i] = card_memory(addresses[i], extent(layouts[i]));
    if (memory[i] == nullptr) return kIllegalAddress;
  }
  const bool has_bias = (desc.epilogue & cuda::kEpilogueBias) != 0;
  const std::byte* bias = nullptr;
  if (has_bias) {
    bias = card_memory(desc.bias, static_cast<std::size_t>(d.rows) * bytes_of(d.type));
    if (bias == nullptr) return kIllegalAddress;
  }
  const auto rows = static_cast<std::size_t>(d.rows);
  const auto k = static_cast<std::size_t>(desc.transposed_a ? a.rows : a.columns);
  for (std::int64_t batch = 0; batch < d.batch; ++batch) {
    // [k, rows] and [columns, k]
    const auto left = factor(memory[0], a, batch, !desc.transposed_a, desc.compute);
    const auto right = factor(memory[1], b, batch, !desc.transposed_b, desc.compute);
    for (std::int64_t j = 0; j < d.columns; ++j) {
      std::vector<double> sums(rows);
      for (std::size_t p = 0; p < k; ++p) {
        const double scale = right[static_cast<std::size_t>(j) * k + p];
        const double* const of = left.data() + p * rows;
        for (std::size_t i = 0; i < rows; ++i) sums[i] += of[i] * scale;
      }
      for (std::int64_t i = 0; i < d.rows; ++i) {
        double sum = sums[static_cast<std::size_t>(i)];
        if (has_bias) sum += read(bias, d.type, i);
        if (desc.epilogue == cuda::kEpilogueReluBias) sum = sum > 0 ? sum : 0;
        write(memory[2], d.type, batch * d.stride + i + j * d.leading, sum);
      }
    }
  }
  return kOk;
}

}  // namespace

#define ENTER(function) \
  if (const int error = injected_error(#function); error != kOk) return error

extern "C" {

std::size_t cublasLtGetVersion() { return 130100; }
const char* cublasLtGetStatusName(int status) {
  switch (status) {
    case kInvalidValue:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case kExecutionFailed:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case kNotSupported:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "CUBLAS_STATUS_OTHER";
  }
}

int cublasLtCreate(void** handle) {
  ENTER(cublasLtCreate);
  *handle = reinterpret_cast<void*>(kMark);
  return kOk;
}

int cublasLtMatmulDescCreate(void** desc, int compute, int scale) {
  ENTER(cublasLtMatmulDescCreate);
  *desc = new Desc{.compute = compute, .scale = scale};
  return kOk;
}
int cublasLtMatmulDescDestroy(void* desc) {
  delete static_cast<Desc*>(desc);
  return kOk;
}
int cublasLtMatmulDescSetAttribute(void* handle, int attribute, const void* value,
                                   std::size_t bytes) {
  ENTER(cublasLtMatmulDescSetAttribute);
  auto& desc = *static_cast<Desc*>(handle);
  std::int32_t number = 0;
  if (attribute == cuda::kDescBias) return take(desc.bias, value, bytes) ? kOk : kInvalidValue;
  if (!take(number, value, bytes)) return kInvalidValue;
  if (attribute == cuda::kDescTransA && (number == 0 || number == 1)) {
    desc.transposed_a = number == 1;
  } else if (attribute == cuda::kDescTransB && (number == 0 || number == 1)) {
    desc.transposed_b = number == 1;
  } else if (attribute == cuda::kDescEpilogue &&
             (number == 1 || number == cuda::kEpilogueBias || number == cuda::kEpilogueReluBias)) {
    desc.epilogue = number;
  } else {
    return kInvalidValue;
  }
  return kOk;
}

int cublasLtMatrixLayoutCreate(void** layout, int type, std::uint64_t rows, std::uint64_t columns,
                               std::int64_t leading) {
  ENTER(cublasLtMatrixLayoutCreate);
  if (bytes_of(type) == 0 || rows == 0 || columns == 0 ||
      leading < static_cast<std::int64_t>(rows)) {
    return kInvalidValue;
  }
  *layout = new Layout{.type = type,
                       .rows = static_cast<std::int64_t>(rows),
                       .columns = static_cast<std::int64_t>(columns),
                       .leading = leading};
  return kOk;
}
int cublasLtMatrixLayoutDestroy(void* layout) {
  delete static_cast<Layout*>(layout);
  return kOk;
}
int cublasLtMatrixLayoutSetAttribute(void* handle, int attribute, const void* value,
                                     std::size_t bytes) {
  ENTER(cublasLtMatrixLayoutSetAttribute);
  auto& layout = *static_cast<Layout*>(handle);
  std::int32_t count = 0;
  if (attribute == cuda::kLayoutBatchCount && take(count, value, bytes) && count > 0) {
    layout.batch = count;
    return kOk;
  }
  return attribute == cuda::kLayoutBatchStride && take(layout.stride, value, bytes) ? kOk
                                                                                    : kInvalidValue;
}

int cublasLtMatmulPreferenceCreate(void** preference) {
  *preference = new Preference;
  return kOk;
}
int cublasLtMatmulPreferenceDestroy(void* preference) {
  delete static_cast<Preference*>(preference);
  return kOk;
}
int cublasLtMatmulPreferenceSetAttribute(void* handle, int attribute, const void* value,
                                         std::size_t bytes) {
  auto& preference = *static_cast<Preference*>(handle);
  return attribute == cuda::kPreferenceWorkspace && take(preference.workspace, value, bytes)
             ? kOk
             : kInvalidValue;
}

int cublasLtMatmulAlgoGetHeuristic(void* handle, void* desc, void* a, void* b, void* c, void* d,
                                   void* preference, int wanted,
                                   cuda::BlasLtHeuristicResult* results, int* count) {
  ENTER(cublasLtMatmulAlgoGetHeuristic);
  *count = 0;
  if (handle != reinterpret_cast<void*>(kMark)) return kInvalidValue;
  const auto& described = *static_cast<Desc*>(desc);
  const auto layout = [](void* one) -> const Layout& { return *static_cast<Layout*>(one); };
  if (!fits(described, layout(a), layout(b), layout(c), layout(d))) return kNotSupported;
  // With an epilogue that adds a bias, its address has to be known.
  if ((described.epilogue & cuda::kEpilogueBias) != 0 && described.bias == 0) return kNotSupported;
  const std::uint64_t most = static_cast<Preference*>(preference)->workspace;
  for (const Algorithm algorithm : {kUnusable, kRefuses, kWithWorkspace, kPlain}) {
    if (*count == wanted || (algorithm == kWithWorkspace && most < kWorkspace)) continue;
    cuda::BlasLtHeuristicResult& result = results[(*count)++];
    result = {};
    result.algo.data[0] = kMark;
    result.algo.data[1] = algorithm;
    result.workspace_bytes = algorithm == kWithWorkspace ? kWorkspace : 0;
    result.status = algorithm == kUnusable ? kNotSupported : kOk;
  }
  return kOk;
}

int cublasLtMatmul(void* handle, void* desc, const void* alpha, const void* a, void* a_layout,
                   const void* b, void* b_layout, const void* beta, const void* c, void* c_layout,
                   void* d, void* d_layout, const cuda::BlasLtAlgo* algo, void* workspace,
                   std::size_t workspace_bytes, void* stream) {
  ENTER(cublasLtMatmul);
  if (handle != reinterpret_cast<void*>(kMark) || algo == nullptr || algo->data[0] != kMark ||
      alpha == nullptr || beta == nullptr) {
    return kInvalidValue;
  }
  const auto& described = *static_cast<Desc*>(desc);
  const auto layout = [](void* one) -> const Layout& { return *static_cast<Layout*>(one); };
  if (!fits(described, layout(a_layout), layout(b_layout), layout(c_layout), layout(d_layout))) {
    return kInvalidValue;
  }
  const std::uint64_t algorithm = algo->data[1];
  if (algorithm == kRefuses || algorithm == kUnusable) return kNotSupported;
  if (algorithm == kWithWorkspace && (workspace == nullptr || workspace_bytes < kWorkspace)) {
    return kInvalidValue;
  }
  const bool is_wide = described.scale == cuda::kReal64F;
  const auto scalar = [&](const void* at) {
    return is_wide ? *static_cast<const double*>(at)
                   : static_cast<double>(*static_cast<const float*>(at));
  };
  if (scalar(alpha) != 1 || scalar(beta) != 0) return kNotSupported;
  const auto number = [](const void* at) { return reinterpret_cast<std::uintptr_t>(at); };
  for (const void* at : {a, b, c, static_cast<const void*>(d)}) {
    constexpr std::uintptr_t kAlignment = 256;
    if (number(at) % kAlignment != 0) return kInvalidValue;
  }
  return submit_work(
      stream,
      [described, layouts = std::array{layout(a_layout), layout(b_layout), layout(d_layout)},
       addresses = std::array<std::uint64_t, 3>{number(a), number(b), number(d)},
       workspace_at = algorithm == kWithWorkspace ? number(workspace) : 0] {
        if (workspace_at != 0) {
          std::byte* const memory = card_memory(workspace_at, kWorkspace);
          if (memory == nullptr) return kIllegalAddress;
          std::memset(memory, 0xFF, kWorkspace);
        }
        return multiply(described, layouts, addresses);
      });
}

}  // extern "C"
