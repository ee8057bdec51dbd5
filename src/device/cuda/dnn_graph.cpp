#include "device/cuda/dnn_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <sstream>
#include <utility>

#include "device/cuda/image_cache.h"
#include "device/cuda/libraries.h"
#include "device/cuda/timing.h"
#include "onnxgrad/error.h"

namespace onnxgrad::device::cuda {
namespace {

constexpr std::int64_t kMostDnnWorkspace = std::int64_t{256} << 20;
constexpr std::int64_t kMostConfigs = 64;
constexpr int kTimedRuns = 3;
constexpr std::int64_t kDnnAlignment = 16;

enum TensorKind : int { kInMemory, kVirtual, kByValue };

void check_dnn(int status, const char* call) {
  if (status == kSuccess) return;
  throw DeviceError({.what = fmt::format("{}: {}", call, dnn().GetErrorString(status)),
                     .hint = "Install the version of nvidia-cudnn that fits the driver."});
}

Owned dnn_descriptor(int type) {
  Handle made = nullptr;
  check_dnn(dnn().CreateDescriptor(type, &made), "cudnnBackendCreateDescriptor");
  return {made, dnn().DestroyDescriptor};
}

template <class T>
void set(Handle to, int attribute, int type, std::span<const T> values) {
  check_dnn(dnn().Set(to, attribute, type, static_cast<std::int64_t>(values.size()),
                      static_cast<const void*>(values.data())),
            "cudnnBackendSetAttribute");
}
template <class T>
void set(const Owned& to, int attribute, int type, const T& value) {
  set(to.get(), attribute, type, std::span<const T>(&value, 1));
}
void set_sizes(const Owned& to, int attribute, const DnnGraph::Dims& sizes) {
  set(to.get(), attribute, dnn_api::kTypeInt64, std::span<const std::int64_t>(sizes));
}
void link(const Owned& to, int attribute, Handle other) {
  set(to, attribute, dnn_api::kTypeDescriptor, other);
}
void finalize(const Owned& one) { check_dnn(dnn().Finalize(one.get()), "cudnnBackendFinalize"); }

std::int64_t bytes_of_type(int type) {
  switch (type) {
    case dnn_api::kDataDouble:
      return 8;
    case dnn_api::kDataHalf:
    case dnn_api::kDataBfloat16:
      return 2;
    default:
      return 4;
  }
}

/// A cuDNN handle of a card, whose stream each call sets.
struct DnnLibrary {
  Handle handle = nullptr;
  std::mutex mutex;
};
DnnLibrary& dnn_of(const Context& context) {
  static std::mutex mutex;
  static std::map<int, DnnLibrary> libraries;
  const std::scoped_lock lock(mutex);
  DnnLibrary& library = libraries[context.index()];
  if (library.handle == nullptr) check_dnn(dnn().Create(&library.handle), "cudnnCreate");
  return library;
}

bool is_allowed(const DnnRule& rule, const Owned& config) {
  const Owned engine = dnn_descriptor(dnn_api::kEngine);
  Handle handle = engine.get();
  std::int64_t count = 0;
  if (dnn().Get(config.get(), dnn_api::kConfigEngine, dnn_api::kTypeDescriptor, 1, &count,
                static_cast<void*>(&handle)) != kSuccess) {
    return false;
  }
  std::array<int, 16> notes{};
  count = 0;
  if (dnn().Get(handle, dnn_api::kEngineNotes, dnn_api::kTypeNumericalNote,
                static_cast<std::int64_t>(notes.size()), &count, notes.data()) != kSuccess) {
    count = 0;
  }
  const auto has = [&](int note) {
    return std::ranges::find(notes.begin(), notes.begin() + count, note) != notes.begin() + count;
  };
  if (rule.is_strict && (has(dnn_api::kNoteTensorCore) || has(dnn_api::kNoteDownConvert))) {
    return false;
  }
  return !rule.is_deterministic || !has(dnn_api::kNoteNondeterministic);
}

/// The choice among the engines of a graph, as it is kept.
struct DnnChoice {
  std::size_t number = 0;
  double time_us = 0;
};

std::optional<DnnChoice> choice_from(const std::string& text, std::size_t bound) {
  DnnChoice choice;
  std::istringstream stream(text);
  stream >> choice.number >> choice.time_us;
  if (!stream || choice.number >= bound) return std::nullopt;
  return choice;
}

}  // namespace

int dnn_type(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat64:
      return dnn_api::kDataDouble;
    case DataType::kFloat16:
      return dnn_api::kDataHalf;
    case DataType::kBfloat16:
      return dnn_api::kDataBfloat16;
    default:
      return dnn_api::kDataFloat;
  }
}

// ---- Graphs ----

DnnGraph::Dims DnnGraph::strides(const Dims& dims, bool channels_last) {
  Dims strides(dims.size(), 1);
  std::vector<std::size_t> order(dims.size());  // innermost first
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  if (channels_last) std::rotate(order.begin(), order.end() - 2, order.end() - 1);
  std::int64_t stride = 1;
  for (const std::size_t axis : order) strides[axis] = std::exchange(stride, stride * dims[axis]);
  return strides;
}

Owned& DnnGraph::add(int descriptor) {
  return descriptors_.emplace_back(dnn_descriptor(descriptor));
}

DnnGraph::Tensor DnnGraph::tensor(const Dims& dims, const Dims& strides, int type, int kind) {
  const Owned& made = add(dnn_api::kTensor);
  set(made, dnn_api::kTensorUid, dnn_api::kTypeInt64, ++last_uid_);
  set(made, dnn_api::kTensorDataType, dnn_api::kTypeDataType, type);
  set(made, dnn_api::kTensorAlignment, dnn_api::kTypeInt64, kDnnAlignment);
  set_sizes(made, dnn_api::kTensorDims, dims);
  set_sizes(made, dnn_api::kTensorStrides, strides);
  if (kind == kVirtual) set(made, dnn_api::kTensorIsVirtual, dnn_api::kTypeBoolean, true);
  if (kind == kByValue) set(made, dnn_api::kTensorIsByValue, dnn_api::kTypeBoolean, true);
  finalize(made);
  return made.get();
}

DnnGraph::Tensor DnnGraph::memory(const Dims& dims, const Dims& strides, int type) {
  const Tensor made = tensor(dims, strides, type, kInMemory);
  uids_.push_back(last_uid_);
  std::int64_t last = 0;
  for (std::size_t i = 0; i < dims.size(); ++i) last += (dims[i] - 1) * strides[i];
  bytes_.push_back((last + 1) * bytes_of_type(type));
  return made;
}

DnnGraph::Tensor DnnGraph::between(const Dims& dims, int type) {
  return between(dims, strides(dims), type);
}
DnnGraph::Tensor DnnGraph::between(const Dims& dims, const Dims& strides, int type) {
  return tensor(dims, strides, type, kVirtual);
}

DnnGraph::Tensor DnnGraph::constant(float value, std::size_t rank) {
  const Dims ones(rank, 1);
  const Tensor made = tensor(ones, ones, dnn_api::kDataFloat, kByValue);
  constants_.push_back(value);
  constant_uids_.push_back(last_uid_);
  return made;
}

void DnnGraph::convolve(int operation, const Window& window, Tensor x, Tensor w, Tensor y) {
  const Owned& described = add(dnn_api::kConvolution);
  set(described, dnn_api::kConvCompType, dnn_api::kTypeDataType, window.precision);
  set(described, dnn_api::kConvMode, dnn_api::kTypeConvMode, int{dnn_api::kCrossCorrelation});
  set(described, dnn_api::kConvSpatialDims, dnn_api::kTypeInt64,
      static_cast<std::int64_t>(window.strides.size()));
  set_sizes(described, dnn_api::kConvDilations, window.dilations);
  set_sizes(described, dnn_api::kConvStrides, window.strides);
  set_sizes(described, dnn_api::kConvPrePads, window.pads_begin);
  set_sizes(described, dnn_api::kConvPostPads, window.pads_end);
  finalize(described);
  const Handle handle = described.get();
  const int first = operation == dnn_api::kForward        ? dnn_api::kForwardAlpha
                    : operation == dnn_api::kBackwardData ? dnn_api::kBackwardDataAlpha
                                                          : dnn_api::kBackwardFilterAlpha;
  const Owned& made = add(operation);
  set(made, first, dnn_api::kTypeFloat, 1.0F);
  set(made, first + 1, dnn_api::kTypeFloat, 0.0F);
  link(made, first + 2, handle);
  link(made, first + 3, w);
  link(made, first + 4, x);
  link(made, first + 5, y);
  finalize(made);
  operations_.push_back(made.get());
}

namespace {

Owned pointwise_descriptor(int mode, int precision) {
  Owned made = dnn_descriptor(dnn_api::kPointwise);
  set(made, dnn_api::kPointwiseMode, dnn_api::kTypePointwiseMode, mode);
  set(made, dnn_api::kPointwisePrecision, dnn_api::kTypeDataType, precision);
  return made;
}

Owned pointwise_operation(Handle described, Handle x, Handle b, Handle y) {
  Owned made = dnn_descriptor(dnn_api::kPointwiseOperation);
  link(made, dnn_api::kPointwiseDescriptor, described);
  link(made, dnn_api::kPointwiseDescriptor + 1, x);
  if (b != nullptr) link(made, dnn_api::kPointwiseDescriptor + 2, b);
  link(made, dnn_api::kPointwiseDescriptor + 3, y);
  return made;
}

}  // namespace

void DnnGraph::pointwise(int mode, Tensor x, Tensor b, Tensor y, int precision) {
  const Owned& described = descriptors_.emplace_back(pointwise_descriptor(mode, precision));
  finalize(described);
  const Handle handle = described.get();
  const Owned& made = descriptors_.emplace_back(pointwise_operation(handle, x, b, y));
  finalize(made);
  operations_.push_back(made.get());
}

void DnnGraph::index_of(Tensor x, std::int64_t axis, Tensor y) {
  const Owned& described =
      descriptors_.emplace_back(pointwise_descriptor(dnn_api::kIndexOf, dnn_api::kDataInt32));
  set(described, dnn_api::kPointwiseAxis, dnn_api::kTypeInt64, axis);
  finalize(described);
  const Handle handle = described.get();
  const Owned& made = descriptors_.emplace_back(pointwise_operation(handle, x, nullptr, y));
  finalize(made);
  operations_.push_back(made.get());
}

void DnnGraph::select(Tensor condition, Tensor x, Tensor b, Tensor y) {
  const Owned& described =
      descriptors_.emplace_back(pointwise_descriptor(dnn_api::kSelect, dnn_api::kDataFloat));
  finalize(described);
  const Handle handle = described.get();
  const Owned& made = descriptors_.emplace_back(pointwise_operation(handle, x, b, y));
  link(made, dnn_api::kPointwiseCondition, condition);
  finalize(made);
  operations_.push_back(made.get());
}

void DnnGraph::clamp(Tensor x, double low, double high, Tensor y) {
  const Owned& described =
      descriptors_.emplace_back(pointwise_descriptor(dnn_api::kReluForward, dnn_api::kDataFloat));
  set(described, dnn_api::kPointwiseNan, dnn_api::kTypeNanPropagation, int{dnn_api::kPropagateNan});
  set(described, dnn_api::kPointwiseLow, dnn_api::kTypeDouble, low);
  set(described, dnn_api::kPointwiseHigh, dnn_api::kTypeDouble, high);
  finalize(described);
  const Handle handle = described.get();
  const Owned& made = descriptors_.emplace_back(pointwise_operation(handle, x, nullptr, y));
  finalize(made);
  operations_.push_back(made.get());
}

void DnnGraph::matmul(Tensor a, Tensor b, Tensor c) {
  const Owned& described = add(dnn_api::kMatmul);
  set(described, dnn_api::kMatmulPrecision, dnn_api::kTypeDataType, int{dnn_api::kDataFloat});
  finalize(described);
  const Handle handle = described.get();
  const Owned& made = add(dnn_api::kMatmulOperation);
  link(made, dnn_api::kMatmulA, a);
  link(made, dnn_api::kMatmulA + 1, b);
  link(made, dnn_api::kMatmulA + 2, c);
  link(made, dnn_api::kMatmulA + 3, handle);
  finalize(made);
  operations_.push_back(made.get());
}

void DnnGraph::reduce(int operation, Tensor x, Tensor y) {
  const Owned& described = add(dnn_api::kReduction);
  set(described, dnn_api::kReductionOperator, dnn_api::kTypeReduceOperator, operation);
  set(described, dnn_api::kReductionPrecision, dnn_api::kTypeDataType, int{dnn_api::kDataFloat});
  finalize(described);
  const Handle handle = described.get();
  const Owned& made = add(dnn_api::kReductionOperation);
  link(made, dnn_api::kReductionX, x);
  link(made, dnn_api::kReductionX + 1, y);
  link(made, dnn_api::kReductionX + 2, handle);
  finalize(made);
  operations_.push_back(made.get());
}

void DnnGraph::pool(int mode, const Dims& kernel, const Window& window, bool is_gradient, Tensor x,
                    Tensor y) {
  const Owned& described = add(dnn_api::kResample);
  const int padding = mode == dnn_api::kMaximumPool ? dnn_api::kMinusInfinity : dnn_api::kZeros;
  set(described, dnn_api::kResampleMode, dnn_api::kTypeResampleMode, mode);
  set(described, dnn_api::kResamplePrecision, dnn_api::kTypeDataType, window.precision);
  set(described, dnn_api::kResampleSpatialDims, dnn_api::kTypeInt64,
      static_cast<std::int64_t>(kernel.size()));
  set_sizes(described, dnn_api::kResamplePostPads, window.pads_end);
  set_sizes(described, dnn_api::kResamplePrePads, window.pads_begin);
  set_sizes(described, dnn_api::kResampleStrides, window.strides);
  set_sizes(described, dnn_api::kResampleWindow, kernel);
  set(described, dnn_api::kResampleNan, dnn_api::kTypeNanPropagation, int{dnn_api::kPropagateNan});
  set(described, dnn_api::kResamplePadding, dnn_api::kTypePaddingMode, padding);
  finalize(described);
  const Handle handle = described.get();
  const Owned& made = add(is_gradient ? dnn_api::kResampleBackward : dnn_api::kResampleForward);
  const int first = is_gradient ? dnn_api::kResampleBackwardX : dnn_api::kResampleForwardX;
  link(made, first, x);
  link(made, first + 1, y);
  link(made,
       is_gradient ? dnn_api::kResampleBackwardDescriptor : dnn_api::kResampleForwardDescriptor,
       handle);
  finalize(made);
  operations_.push_back(made.get());
}

void DnnGraph::reshape(Tensor x, Tensor y) {
  const Owned& made = add(dnn_api::kReshapeOperation);
  link(made, dnn_api::kReshapeX, x);
  link(made, dnn_api::kReshapeX + 1, y);
  finalize(made);
  operations_.push_back(made.get());
}

// ---- Plans ----

/// Finds the plans of a graph, on a card or for the properties of one.
class DnnPlanner {
 public:
  DnnPlanner(const DnnRule& rule, Handle library, Handle device)
      : rule_(rule), library_(library), device_(device) {}

  void build(const DnnPlan::Build& build) {
    build(graph_);
    whole_ = dnn_descriptor(dnn_api::kGraph);
    set(whole_.get(), dnn_api::kGraphOperations, dnn_api::kTypeDescriptor,
        std::span<const Handle>(graph_.operations_));
    if (library_ != nullptr) {
      set(whole_, dnn_api::kGraphHandle, dnn_api::kTypeHandle, library_);
    }
    finalize(whole_);
    for (const int mode : {dnn_api::kModeA, dnn_api::kModeFallback}) propose(mode);
  }

  std::size_t num_configs() const { return configs_.size(); }

  /// The plan of a proposal, if it is allowed and can be made.
  struct Made {
    Owned plan;
    std::int64_t workspace_bytes = 0;
  };
  std::optional<Made> plan_of(std::size_t number) const {
    if (!is_allowed(rule_, configs_[number])) return std::nullopt;
    Made made{.plan = dnn_descriptor(dnn_api::kPlan)};
    link(made.plan, dnn_api::kPlanConfig, configs_[number].get());
    if (library_ != nullptr) {
      set(made.plan, dnn_api::kPlanHandle, dnn_api::kTypeHandle, library_);
    } else {
      link(made.plan, dnn_api::kPlanDevice, device_);
    }
    const int status = dnn().Finalize(made.plan.get());
    if (library_ == nullptr && status == dnn_api::kFailedInDriver) return made;
    if (status != kSuccess) return std::nullopt;
    std::int64_t count = 0;
    check_dnn(dnn().Get(made.plan.get(), dnn_api::kPlanWorkspace, dnn_api::kTypeInt64, 1, &count,
                        &made.workspace_bytes),
              "cudnnBackendGetAttribute");
    if (made.workspace_bytes > kMostDnnWorkspace) return std::nullopt;
    return made;
  }

  /// A plan without an engine yet.
  std::shared_ptr<DnnPlan> empty_plan(const std::shared_ptr<Context>& context) {
    std::shared_ptr<DnnPlan> plan(new DnnPlan());
    plan->context_ = context;
    plan->uids_ = graph_.uids_;
    plan->uids_.insert(plan->uids_.end(), graph_.constant_uids_.begin(),
                       graph_.constant_uids_.end());
    plan->constants_ = graph_.constants_;
    return plan;
  }

  bool take(DnnPlan& plan, const DnnChoice& choice) const {
    auto made = plan_of(choice.number);
    if (!made) return false;
    plan.plan_ = std::move(made->plan);
    plan.workspace_bytes_ = made->workspace_bytes;
    plan.time_us_ = choice.time_us;
    return true;
  }

  std::optional<DnnChoice> fastest(const DnnPlan& plan) const {
    Context& context = *plan.context_;
    Handle stream_made = nullptr;
    check(driver().StreamCreate(&stream_made, kNonBlocking), "cuStreamCreate");
    const Owned stream(stream_made, driver().StreamDestroy);
    constexpr unsigned char kFill = 0x3C;  // a number near 0.01 in all types
    std::vector<Buffer> buffers;
    std::vector<std::uint64_t> addresses;
    for (const std::int64_t bytes : graph_.bytes_) {
      buffers.push_back(context.allocate(bytes));
      addresses.push_back(static_cast<std::uint64_t>(buffers.back().address));
      check(driver().MemsetD8Async(addresses.back(), kFill, static_cast<std::size_t>(bytes),
                                   stream.get()),
            "cuMemsetD8Async");
    }
    std::optional<DnnChoice> best;
    for (std::size_t i = 0; i < configs_.size(); ++i) {
      const auto candidate = plan_of(i);
      if (!candidate) continue;
      const Buffer workspace =
          context.allocate(std::max<std::int64_t>(candidate->workspace_bytes, 1));
      const double time = best_time_us(stream.get(), kTimedRuns, [&] {
        return plan.execute(candidate->plan.get(), addresses,
                            static_cast<std::uint64_t>(workspace.address), stream.get());
      });
      if (time == std::numeric_limits<double>::infinity()) continue;
      if (!best || time < best->time_us) best = {.number = i, .time_us = time};
    }
    return best;
  }

 private:
  void propose(int mode) {
    const Owned heuristic = dnn_descriptor(dnn_api::kHeuristic);
    link(heuristic, dnn_api::kHeurGraph, whole_.get());
    set(heuristic, dnn_api::kHeurMode, dnn_api::kTypeHeurMode, mode);
    if (device_ != nullptr) link(heuristic, dnn_api::kHeurDevice, device_);
    if (dnn().Finalize(heuristic.get()) != kSuccess) return;
    std::vector<Owned> proposed;
    std::vector<Handle> handles;
    for (std::int64_t i = 0; i < kMostConfigs; ++i) {
      proposed.push_back(dnn_descriptor(dnn_api::kEngineConfig));
      handles.push_back(proposed.back().get());
    }
    std::int64_t count = 0;
    if (dnn().Get(heuristic.get(), dnn_api::kHeurResults, dnn_api::kTypeDescriptor, kMostConfigs,
                  &count, static_cast<void*>(handles.data())) != kSuccess) {
      return;
    }
    proposed.resize(static_cast<std::size_t>(std::clamp<std::int64_t>(count, 0, kMostConfigs)));
    std::ranges::move(proposed, std::back_inserter(configs_));
  }

  DnnRule rule_;
  Handle library_;
  Handle device_;
  DnnGraph graph_;
  Owned whole_;
  std::vector<Owned> configs_;  // best first by cuDNN's reckoning
};

int DnnPlan::execute(Handle plan, std::span<const std::uint64_t> addresses, std::uint64_t workspace,
                     Handle stream) const {
  std::vector<void*> pointers;
  for (const std::uint64_t address : addresses) pointers.push_back(library_pointer(address));
  for (const float& constant : constants_) pointers.push_back(const_cast<float*>(&constant));
  const Owned pack = dnn_descriptor(dnn_api::kVariantPack);
  set(pack.get(), dnn_api::kPackUids, dnn_api::kTypeInt64, std::span<const std::int64_t>(uids_));
  set(pack.get(), dnn_api::kPackPointers, dnn_api::kTypePointer, std::span<void* const>(pointers));
  set(pack, dnn_api::kPackWorkspace, dnn_api::kTypePointer, library_pointer(workspace));
  finalize(pack);
  DnnLibrary& library = dnn_of(*context_);
  const std::scoped_lock lock(library.mutex);
  check_dnn(dnn().SetStream(library.handle, stream), "cudnnSetStream");
  return dnn().Execute(library.handle, plan, pack.get());
}

void DnnPlan::run(std::span<const std::uint64_t> addresses, std::uint64_t workspace,
                  Handle stream) const {
  check_dnn(execute(plan_.get(), addresses, workspace, stream), "cudnnBackendExecute");
}

std::shared_ptr<const DnnPlan> DnnPlan::of(const std::shared_ptr<Context>& context,
                                           const std::string& key, const DnnRule& rule,
                                           const Build& build, std::string& declined) {
  declined = dnn_problem();
  if (!declined.empty()) {
    declined = declined.substr(0, declined.find('\n'));
    return nullptr;
  }
  static std::mutex mutex;
  static std::map<std::string, std::optional<DnnChoice>> chosen;  // nullopt: none computes it
  const std::scoped_lock lock(mutex);
  const std::string whole =
      fmt::format("cudnn {} {} {}: {} {} {}", dnn().GetVersion(), context->name(),
                  context->capability(), rule.is_strict, rule.is_deterministic, key);
  // Offers are asked several times, and attention takes up to a second. Never destroyed: the driver
  // may be gone by then.
  using Plans = std::map<std::pair<int, std::string>, std::shared_ptr<const DnnPlan>>;
  static Plans& plans = *new Plans();
  std::shared_ptr<const DnnPlan>& kept_plan = plans[{context->index(), whole}];
  if (kept_plan != nullptr) return kept_plan;
  declined = "cuDNN has no engine";
  const auto known = chosen.find(whole);
  if (known != chosen.end() && !known->second) return nullptr;
  try {
    context->make_current();
    DnnPlanner planner(rule, dnn_of(*context).handle, nullptr);
    planner.build(build);
    std::shared_ptr<DnnPlan> plan = planner.empty_plan(context);
    std::optional<DnnChoice> choice;
    if (known != chosen.end()) {
      choice = known->second;
    } else if (const auto kept = find_image(whole)) {
      choice = choice_from(*kept, planner.num_configs());
    }
    if (choice && planner.take(*plan, *choice)) {
      chosen[whole] = choice;
      kept_plan = plan;
      return plan;
    }
    choice = planner.fastest(*plan);
    chosen[whole] = choice;
    if (!choice || !planner.take(*plan, *choice)) return nullptr;
    keep_image(whole, fmt::format("{} {}", choice->number, choice->time_us));
    kept_plan = plan;
    return plan;
  } catch (const DeviceError& error) {
    declined = error.what();
    return nullptr;
  }
}

bool has_dnn_plan(const std::string& device_json, const DnnRule& rule,
                  const DnnPlan::Build& build) {
  const Owned device = dnn_descriptor(dnn_api::kDeviceProperties);
  set(device.get(), dnn_api::kDeviceJson, dnn_api::kTypeChar,
      std::span<const char>(device_json.data(), device_json.size()));
  finalize(device);
  DnnPlanner planner(rule, nullptr, device.get());
  planner.build(build);
  for (std::size_t i = 0; i < planner.num_configs(); ++i) {
    if (planner.plan_of(i)) return true;
  }
  return false;
}

}  // namespace onnxgrad::device::cuda
