#include "device/cuda/blas_lt.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "device/cuda/image_cache.h"
#include "device/cuda/libraries.h"
#include "device/cuda/timing.h"
#include "onnxgrad/error.h"

namespace onnxgrad::device::cuda {
namespace {

constexpr std::size_t kWorkspace = std::size_t{32} << 20;  // with which a card was measured
constexpr int kCandidates = 8;
constexpr int kRepeats = 5;

void check_blas(int status, const char* call) {
  if (status == kSuccess) return;
  throw DeviceError({.what = fmt::format("{} returned {}", call, blas_lt().GetStatusName(status)),
                     .hint = "Install the version of nvidia-cublas that fits the driver."});
}

int library_type(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat64:
      return kReal64F;
    case DataType::kFloat16:
      return kReal16F;
    case DataType::kBfloat16:
      return kReal16BF;
    default:
      return kReal32F;
  }
}

std::int64_t bytes_of(DataType dtype) {
  return dtype == DataType::kFloat64 ? 8 : dtype == DataType::kFloat32 ? 4 : 2;
}

int compute_of(const BlasLtSpec& spec) {
  if (spec.in == DataType::kFloat64) return kCompute64F;
  if (spec.in != DataType::kFloat32) return kCompute32F;
  return spec.allows_tf32 ? kCompute32FTf32 : kCompute32F;
}

Handle handle_of(const Context& context) {
  static std::mutex mutex;
  static std::map<int, Handle> handles;
  const std::scoped_lock lock(mutex);
  Handle& handle = handles[context.index()];
  if (handle == nullptr) check_blas(blas_lt().Create(&handle), "cublasLtCreate");
  return handle;
}

std::string key_of(const Context& context, const BlasLtSpec& spec) {
  return fmt::format("cublasLt {} {} {}: {} {} {} {}{} {} {} {} {} {}{} {}", blas_lt().GetVersion(),
                     context.name(), context.capability(), spec.m, spec.n, spec.k,
                     spec.transpose_a ? 't' : 'n', spec.transpose_b ? 't' : 'n',
                     library_type(spec.in), library_type(spec.out), compute_of(spec), spec.batch,
                     spec.shares_a, spec.shares_b, static_cast<int>(spec.epilogue));
}

std::mutex choices_mutex;
std::map<std::string, BlasLtHeuristicResult>& choices() {
  static std::map<std::string, BlasLtHeuristicResult> made;
  return made;
}

// An algorithm and its workspace, as bytes.
constexpr std::size_t kKeptBytes = sizeof(BlasLtAlgo) + sizeof(std::uint64_t);

std::string to_bytes(const BlasLtHeuristicResult& choice) {
  std::string bytes(kKeptBytes, '\0');
  const std::uint64_t workspace = choice.workspace_bytes;
  std::memcpy(bytes.data(), &choice.algo, sizeof choice.algo);
  std::memcpy(bytes.data() + sizeof choice.algo, &workspace, sizeof workspace);
  return bytes;
}

std::optional<BlasLtHeuristicResult> from_bytes(const std::string& bytes) {
  if (bytes.size() != kKeptBytes) return std::nullopt;
  BlasLtHeuristicResult choice;
  std::uint64_t workspace = 0;
  std::memcpy(&choice.algo, bytes.data(), sizeof choice.algo);
  std::memcpy(&workspace, bytes.data() + sizeof choice.algo, sizeof workspace);
  if (workspace > kWorkspace) return std::nullopt;
  choice.workspace_bytes = workspace;
  return choice;
}

std::uint64_t address(const Buffer& buffer) { return static_cast<std::uint64_t>(buffer.address); }

}  // namespace

BlasLtProduct::BlasLtProduct(std::shared_ptr<Context> context, const BlasLtSpec& spec)
    : context_(std::move(context)), spec_(spec) {
  context_->make_current();
  handle_ = handle_of(*context_);
  const bool is_wide = spec.in == DataType::kFloat64;
  check_blas(blas_lt().DescCreate(&desc_, compute_of(spec), is_wide ? kReal64F : kReal32F),
             "cublasLtMatmulDescCreate");
  const auto set = [&](int attribute, int value) {
    check_blas(blas_lt().DescSet(desc_, attribute, &value, sizeof value),
               "cublasLtMatmulDescSetAttribute");
  };
  // The library is column-major: it computes the transposed product, of B and A.
  if (spec.transpose_b) set(kDescTransA, kTransposed);
  if (spec.transpose_a) set(kDescTransB, kTransposed);
  if (spec.epilogue == BlasLtSpec::Epilogue::kBias) set(kDescEpilogue, kEpilogueBias);
  if (spec.epilogue == BlasLtSpec::Epilogue::kReluBias) set(kDescEpilogue, kEpilogueReluBias);
  const auto layout = [&](Handle& made, DataType dtype, std::int64_t rows, std::int64_t columns,
                          bool is_shared) {
    check_blas(
        blas_lt().LayoutCreate(&made, library_type(dtype), static_cast<std::uint64_t>(columns),
                               static_cast<std::uint64_t>(rows), columns),
        "cublasLtMatrixLayoutCreate");
    if (spec.batch == 1) return;
    const auto count = static_cast<std::int32_t>(spec.batch);
    const std::int64_t stride = is_shared ? 0 : rows * columns;
    check_blas(blas_lt().LayoutSet(made, kLayoutBatchCount, &count, sizeof count),
               "cublasLtMatrixLayoutSetAttribute");
    check_blas(blas_lt().LayoutSet(made, kLayoutBatchStride, &stride, sizeof stride),
               "cublasLtMatrixLayoutSetAttribute");
  };
  layout(b_, spec.in, spec.transpose_b ? spec.n : spec.k, spec.transpose_b ? spec.k : spec.n,
         spec.shares_b);
  layout(a_, spec.in, spec.transpose_a ? spec.k : spec.m, spec.transpose_a ? spec.m : spec.k,
         spec.shares_a);
  layout(c_, spec.out, spec.m, spec.n, false);
}

BlasLtProduct::~BlasLtProduct() {
  for (const Handle layout : {a_, b_, c_}) {
    if (layout != nullptr) blas_lt().LayoutDestroy(layout);
  }
  if (desc_ != nullptr) blas_lt().DescDestroy(desc_);
}

int BlasLtProduct::launch(const BlasLtHeuristicResult& how, const Operands& operands,
                          Handle stream) const {
  constexpr double kOne64 = 1;
  constexpr double kZero64 = 0;
  constexpr float kOne = 1;
  constexpr float kZero = 0;
  const bool is_wide = spec_.in == DataType::kFloat64;
  const void* const one = is_wide ? static_cast<const void*>(&kOne64) : &kOne;
  const void* const zero = is_wide ? static_cast<const void*>(&kZero64) : &kZero;
  // The address of the bias is part of the description, which plans of several threads may share.
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  if (spec_.epilogue != BlasLtSpec::Epilogue::kNone) {
    const int status = blas_lt().DescSet(desc_, kDescBias, &operands.bias, sizeof operands.bias);
    if (status != kSuccess) return status;
  }
  return blas_lt().Matmul(handle_, desc_, one, library_pointer(operands.b), b_,
                          library_pointer(operands.a), a_, zero, library_pointer(operands.c), c_,
                          library_pointer(operands.c), c_, &how.algo,
                          library_pointer(operands.workspace), how.workspace_bytes, stream);
}

void BlasLtProduct::run(const Operands& operands, Handle stream) const {
  check_blas(launch(chosen_, operands, stream), "cublasLtMatmul");
}

// The best of several runs, in microseconds; infinite if it fails.
double BlasLtProduct::time_us(const BlasLtHeuristicResult& how, const Operands& operands,
                              Handle stream) const {
  return best_time_us(stream, kRepeats, [&] { return launch(how, operands, stream); });
}

// The number of the fastest one; `count`: all of them fail. The first one, if the card has no
// memory for operands.
std::size_t BlasLtProduct::fastest(const BlasLtHeuristicResult* candidates,
                                   std::size_t count) const {
  constexpr unsigned char kFill = 0x3C;  // a number near 0.01 in all types
  Handle made = nullptr;
  check(driver().StreamCreate(&made, kNonBlocking), "cuStreamCreate");
  const Owned stream(made, driver().StreamDestroy);
  std::array<Buffer, 5> buffers;
  Operands operands;
  try {
    const std::int64_t matrices_a = spec_.shares_a ? 1 : spec_.batch;
    const std::int64_t matrices_b = spec_.shares_b ? 1 : spec_.batch;
    const std::array<std::int64_t, 5> sizes{matrices_a * spec_.m * spec_.k * bytes_of(spec_.in),
                                            matrices_b * spec_.k * spec_.n * bytes_of(spec_.in),
                                            spec_.batch * spec_.m * spec_.n * bytes_of(spec_.out),
                                            spec_.n * bytes_of(spec_.out),
                                            static_cast<std::int64_t>(kWorkspace)};
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      buffers[i] = context_->allocate(sizes[i]);
      check(driver().MemsetD8Async(address(buffers[i]), kFill, static_cast<std::size_t>(sizes[i]),
                                   stream.get()),
            "cuMemsetD8Async");
    }
    operands = {.a = address(buffers[0]),
                .b = address(buffers[1]),
                .c = address(buffers[2]),
                .bias = address(buffers[3]),
                .workspace = address(buffers[4])};
  } catch (const DeviceError&) {
    return 0;
  }
  double best = std::numeric_limits<double>::infinity();
  std::size_t chosen = count;
  for (std::size_t i = 0; i < count; ++i) {
    const double time = time_us(candidates[i], operands, stream.get());
    if (time >= best) continue;
    best = time;
    chosen = i;
  }
  return chosen;
}

bool BlasLtProduct::choose() {
  const std::string key = key_of(*context_, spec_);
  const std::scoped_lock lock(choices_mutex);
  if (const auto known = choices().find(key); known != choices().end()) {
    chosen_ = known->second;
    return true;
  }
  if (const auto kept = find_image(key)) {
    if (const auto choice = from_bytes(*kept)) {
      choices()[key] = chosen_ = *choice;
      return true;
    }
  }
  Handle preference = nullptr;
  check_blas(blas_lt().PreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  const Owned owned(preference, blas_lt().PreferenceDestroy);
  check_blas(
      blas_lt().PreferenceSet(preference, kPreferenceWorkspace, &kWorkspace, sizeof kWorkspace),
      "cublasLtMatmulPreferenceSetAttribute");
  if (spec_.epilogue != BlasLtSpec::Epilogue::kNone) {
    constexpr std::uint64_t kAnywhere = 256;  // an aligned address; the real one follows
    check_blas(blas_lt().DescSet(desc_, kDescBias, &kAnywhere, sizeof kAnywhere),
               "cublasLtMatmulDescSetAttribute");
  }
  std::array<BlasLtHeuristicResult, kCandidates> candidates;
  int count = 0;
  const int status = blas_lt().Heuristic(handle_, desc_, b_, a_, c_, c_, preference, kCandidates,
                                         candidates.data(), &count);
  if (status != kSuccess || count == 0) return false;
  auto* const usable = std::stable_partition(
      candidates.begin(), candidates.begin() + count,
      [](const BlasLtHeuristicResult& one) { return one.status == kSuccess; });
  const auto num_usable = static_cast<std::size_t>(usable - candidates.begin());
  const std::size_t chosen = fastest(candidates.data(), num_usable);
  if (chosen >= num_usable) return false;
  choices()[key] = chosen_ = candidates[chosen];
  keep_image(key, to_bytes(chosen_));
  return true;
}

std::shared_ptr<const BlasLtProduct> BlasLtProduct::of(const std::shared_ptr<Context>& context,
                                                       const BlasLtSpec& spec,
                                                       std::string& declined) {
  if (const std::string problem = blas_lt_problem(); !problem.empty()) {
    declined = problem.substr(0, problem.find('\n'));
    return nullptr;
  }
  std::shared_ptr<BlasLtProduct> product(new BlasLtProduct(context, spec));
  if (product->choose()) return product;
  declined = "cuBLASLt has no algorithm";
  return nullptr;
}

}  // namespace onnxgrad::device::cuda
