#include "device/cuda/dnn.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "device/cuda/image_cache.h"
#include "device/cuda/libraries.h"
#include "device/cuda/timing.h"
#include "onnxgrad/error.h"

namespace onnxgrad::device::cuda {
namespace {

constexpr std::int64_t kMostDnnWorkspace = std::int64_t{256} << 20;
constexpr std::int64_t kMostConfigs = 64;  // of a heuristic
constexpr int kTimedRuns = 3;
constexpr std::array<std::int64_t, 3> kUids{1, 2, 3};  // of x, w, y

void check_dnn(int status, const char* call) {
  if (status == kSuccess) return;
  throw DeviceError({.what = fmt::format("{}: {}", call, dnn().GetErrorString(status)),
                     .hint = "Install the version of nvidia-cudnn that fits the driver."});
}

Owned descriptor(int type) {
  Handle made = nullptr;
  check_dnn(dnn().CreateDescriptor(type, &made), "cudnnBackendCreateDescriptor");
  return {made, dnn().DestroyDescriptor};
}

template <class T>
void set(const Owned& to, int attribute, int type, std::span<const T> values) {
  check_dnn(dnn().Set(to.get(), attribute, type, static_cast<std::int64_t>(values.size()),
                      static_cast<const void*>(values.data())),
            "cudnnBackendSetAttribute");
}
template <class T>
void set(const Owned& to, int attribute, int type, const T& value) {
  set(to, attribute, type, std::span<const T>(&value, 1));
}
void set_sizes(const Owned& to, int attribute, const std::vector<std::int64_t>& sizes) {
  set(to, attribute, dnn_api::kTypeInt64, std::span<const std::int64_t>(sizes));
}
void link(const Owned& to, int attribute, const Owned& other) {
  set(to, attribute, dnn_api::kTypeDescriptor, other.get());
}
void finalize(const Owned& one) { check_dnn(dnn().Finalize(one.get()), "cudnnBackendFinalize"); }

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

std::int64_t elements(const std::vector<std::int64_t>& dims) {
  return std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
}

Owned tensor(std::int64_t uid, const std::vector<std::int64_t>& dims, DataType dtype) {
  constexpr std::int64_t kAlignment = 16;
  std::vector<std::int64_t> strides(dims.size(), 1);
  for (std::size_t i = dims.size() - 1; i-- > 0;) strides[i] = strides[i + 1] * dims[i + 1];
  Owned made = descriptor(dnn_api::kTensor);
  set(made, dnn_api::kTensorUid, dnn_api::kTypeInt64, uid);
  set(made, dnn_api::kTensorDataType, dnn_api::kTypeDataType, dnn_type(dtype));
  set(made, dnn_api::kTensorAlignment, dnn_api::kTypeInt64, kAlignment);
  set_sizes(made, dnn_api::kTensorDims, dims);
  set_sizes(made, dnn_api::kTensorStrides, strides);
  finalize(made);
  return made;
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

/// A graph of one operation, with everything that has to live as long.
struct DnnGraph {
  Owned x, w, y, convolution, operation, graph;
};

DnnGraph graph_of(const DnnConvSpec& spec, Handle handle) {
  DnnGraph g;
  g.x = tensor(kUids[0], spec.x, spec.dtype);
  g.w = tensor(kUids[1], spec.w, spec.dtype);
  g.y = tensor(kUids[2], spec.y, spec.dtype);
  const bool is_wide = spec.dtype == DataType::kFloat64;
  g.convolution = descriptor(dnn_api::kConvolution);
  set(g.convolution, dnn_api::kConvCompType, dnn_api::kTypeDataType,
      static_cast<int>(is_wide ? dnn_api::kDataDouble : dnn_api::kDataFloat));
  set(g.convolution, dnn_api::kConvMode, dnn_api::kTypeConvMode,
      static_cast<int>(dnn_api::kCrossCorrelation));
  set(g.convolution, dnn_api::kConvSpatialDims, dnn_api::kTypeInt64,
      static_cast<std::int64_t>(spec.strides.size()));
  set_sizes(g.convolution, dnn_api::kConvDilations, spec.dilations);
  set_sizes(g.convolution, dnn_api::kConvStrides, spec.strides);
  set_sizes(g.convolution, dnn_api::kConvPrePads, spec.pads_begin);
  set_sizes(g.convolution, dnn_api::kConvPostPads, spec.pads_end);
  finalize(g.convolution);
  const bool is_forward = spec.pass == DnnConvSpec::Pass::kForward;
  const bool is_data = spec.pass == DnnConvSpec::Pass::kBackwardData;
  g.operation = descriptor(is_forward ? dnn_api::kForward
                           : is_data  ? dnn_api::kBackwardData
                                      : dnn_api::kBackwardFilter);
  const int first = is_forward ? dnn_api::kForwardAlpha
                    : is_data  ? dnn_api::kBackwardDataAlpha
                               : dnn_api::kBackwardFilterAlpha;
  set(g.operation, first, dnn_api::kTypeFloat, 1.0F);
  set(g.operation, first + 1, dnn_api::kTypeFloat, 0.0F);
  link(g.operation, first + 2, g.convolution);
  link(g.operation, first + 3, g.w);
  link(g.operation, first + 4, g.x);
  link(g.operation, first + 5, g.y);
  finalize(g.operation);
  g.graph = descriptor(dnn_api::kGraph);
  link(g.graph, dnn_api::kGraphOperations, g.operation);
  set(g.graph, dnn_api::kGraphHandle, dnn_api::kTypeHandle, handle);
  finalize(g.graph);
  return g;
}

// The engines that heuristics propose, best first by their reckoning.
std::vector<Owned> configs_of(const DnnGraph& graph) {
  std::vector<Owned> configs;
  for (const int mode : {dnn_api::kModeA, dnn_api::kModeFallback}) {
    const Owned heuristic = descriptor(dnn_api::kHeuristic);
    link(heuristic, dnn_api::kHeurGraph, graph.graph);
    set(heuristic, dnn_api::kHeurMode, dnn_api::kTypeHeurMode, mode);
    if (dnn().Finalize(heuristic.get()) != kSuccess) continue;
    std::vector<Owned> proposed;
    std::vector<Handle> handles;
    for (std::int64_t i = 0; i < kMostConfigs; ++i) {
      proposed.push_back(descriptor(dnn_api::kEngineConfig));
      handles.push_back(proposed.back().get());
    }
    std::int64_t count = 0;
    if (dnn().Get(heuristic.get(), dnn_api::kHeurResults, dnn_api::kTypeDescriptor, kMostConfigs,
                  &count, static_cast<void*>(handles.data())) != kSuccess) {
      continue;
    }
    proposed.resize(static_cast<std::size_t>(std::clamp<std::int64_t>(count, 0, kMostConfigs)));
    std::ranges::move(proposed, std::back_inserter(configs));
  }
  return configs;
}

bool is_allowed(const DnnConvSpec& spec, const Owned& config) {
  const Owned engine = descriptor(dnn_api::kEngine);
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
  const bool is_strict = spec.dtype == DataType::kFloat32 && !spec.allows_tf32;
  if (is_strict && (has(dnn_api::kNoteTensorCore) || has(dnn_api::kNoteDownConvert))) return false;
  return !spec.is_deterministic || !has(dnn_api::kNoteNondeterministic);
}

/// The plan of an engine, if it can be made.
struct DnnPlan {
  Owned plan;
  std::int64_t workspace_bytes = 0;
};
std::optional<DnnPlan> plan_of(const Owned& config, Handle handle) {
  DnnPlan made{.plan = descriptor(dnn_api::kPlan)};
  link(made.plan, dnn_api::kPlanConfig, config);
  set(made.plan, dnn_api::kPlanHandle, dnn_api::kTypeHandle, handle);
  if (dnn().Finalize(made.plan.get()) != kSuccess) return std::nullopt;
  std::int64_t count = 0;
  check_dnn(dnn().Get(made.plan.get(), dnn_api::kPlanWorkspace, dnn_api::kTypeInt64, 1, &count,
                      &made.workspace_bytes),
            "cudnnBackendGetAttribute");
  if (made.workspace_bytes > kMostDnnWorkspace) return std::nullopt;
  return made;
}

std::string dnn_key_of(const Context& context, const DnnConvSpec& spec) {
  return fmt::format("cudnn {} {} {}: {} {} {} {} {} {} {} {} {} {} {}", dnn().GetVersion(),
                     context.name(), context.capability(), static_cast<int>(spec.pass),
                     dnn_type(spec.dtype), fmt::join(spec.x, ","), fmt::join(spec.w, ","),
                     fmt::join(spec.y, ","), fmt::join(spec.strides, ","),
                     fmt::join(spec.dilations, ","), fmt::join(spec.pads_begin, ","),
                     fmt::join(spec.pads_end, ","), spec.allows_tf32, spec.is_deterministic);
}

std::optional<std::size_t> number_from(const std::string& text, std::size_t bound) {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number >= bound) {
    return std::nullopt;
  }
  return number;
}

}  // namespace

int DnnConvolution::execute(Handle plan, const Operands& operands, Handle stream) const {
  const std::array<void*, 3> pointers{library_pointer(operands.x), library_pointer(operands.w),
                                      library_pointer(operands.y)};
  const Owned pack = descriptor(dnn_api::kVariantPack);
  set(pack, dnn_api::kPackUids, dnn_api::kTypeInt64, std::span<const std::int64_t>(kUids));
  set(pack, dnn_api::kPackPointers, dnn_api::kTypePointer, std::span<void* const>(pointers));
  set(pack, dnn_api::kPackWorkspace, dnn_api::kTypePointer, library_pointer(operands.workspace));
  finalize(pack);
  DnnLibrary& library = dnn_of(*context_);
  const std::scoped_lock lock(library.mutex);
  check_dnn(dnn().SetStream(library.handle, stream), "cudnnSetStream");
  return dnn().Execute(library.handle, plan, pack.get());
}

void DnnConvolution::run(const Operands& operands, Handle stream) const {
  check_dnn(execute(plan_.get(), operands, stream), "cudnnBackendExecute");
}

double DnnConvolution::time_us(Handle plan, const Operands& operands, Handle stream) const {
  return best_time_us(stream, kTimedRuns, [&] { return execute(plan, operands, stream); });
}

bool DnnConvolution::choose(const DnnConvSpec& spec) {
  context_->make_current();
  const Handle handle = dnn_of(*context_).handle;
  const DnnGraph graph = graph_of(spec, handle);
  const std::vector<Owned> configs = configs_of(graph);
  const auto take = [&](std::size_t i) {
    if (!is_allowed(spec, configs[i])) return false;
    auto made = plan_of(configs[i], handle);
    if (!made) return false;
    plan_ = std::move(made->plan);
    workspace_bytes_ = made->workspace_bytes;
    return true;
  };
  static std::mutex mutex;
  static std::map<std::string, std::size_t> chosen;
  const std::scoped_lock lock(mutex);
  const std::string key = dnn_key_of(*context_, spec);
  if (const auto known = chosen.find(key); known != chosen.end()) return take(known->second);
  if (const auto kept = find_image(key)) {
    const auto number = number_from(*kept, configs.size());
    if (number && take(*number)) {
      chosen[key] = *number;
      return true;
    }
  }
  Handle made = nullptr;
  check(driver().StreamCreate(&made, kNonBlocking), "cuStreamCreate");
  const Owned stream(made, driver().StreamDestroy);
  constexpr unsigned char kFill = 0x3C;  // a number near 0.01 in all types
  const std::int64_t bytes = spec.dtype == DataType::kFloat64   ? 8
                             : spec.dtype == DataType::kFloat32 ? 4
                                                                : 2;
  const auto buffer = [&](std::int64_t size) {
    Buffer memory = context_->allocate(size);
    check(driver().MemsetD8Async(static_cast<DevicePointer>(memory.address), kFill,
                                 static_cast<std::size_t>(size), stream.get()),
          "cuMemsetD8Async");
    return memory;
  };
  const Buffer x = buffer(elements(spec.x) * bytes);
  const Buffer w = buffer(elements(spec.w) * bytes);
  const Buffer y = buffer(elements(spec.y) * bytes);
  double best = std::numeric_limits<double>::infinity();
  std::size_t number = configs.size();
  for (std::size_t i = 0; i < configs.size(); ++i) {
    if (!is_allowed(spec, configs[i])) continue;
    const auto candidate = plan_of(configs[i], handle);
    if (!candidate) continue;
    const Buffer workspace =
        context_->allocate(std::max<std::int64_t>(candidate->workspace_bytes, 1));
    const auto at = [](const Buffer& one) { return static_cast<std::uint64_t>(one.address); };
    const double time =
        time_us(candidate->plan.get(),
                {.x = at(x), .w = at(w), .y = at(y), .workspace = at(workspace)}, stream.get());
    if (time >= best) continue;
    best = time;
    number = i;
  }
  if (number == configs.size() || !take(number)) return false;
  chosen[key] = number;
  keep_image(key, fmt::format("{}", number));
  return true;
}

std::shared_ptr<const DnnConvolution> DnnConvolution::of(const std::shared_ptr<Context>& context,
                                                         const DnnConvSpec& spec,
                                                         std::string& declined) {
  declined = dnn_problem();
  if (!declined.empty()) {
    declined = declined.substr(0, declined.find('\n'));
    return nullptr;
  }
  std::shared_ptr<DnnConvolution> made(new DnnConvolution(context));
  try {
    if (made->choose(spec)) return made;
    declined = "cuDNN has no engine";
  } catch (const DeviceError& error) {
    declined = error.what();
  }
  return nullptr;
}

}  // namespace onnxgrad::device::cuda
