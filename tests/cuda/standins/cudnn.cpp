// Stands in for cuDNN's backend API: convolutions by plain loops on the memory of the driver's
// stand-in, done when its streams are. Stricter than the library: attributes that a descriptor has
// not, wrong types and numbers of elements, changes after it is finalized, missing attributes and
// sizes that do not fit are errors. Heuristics propose engines of which the first rounds its inputs
// (notes TENSOR_CORE, DOWN_CONVERT_INPUTS), the second is not deterministic, the third has no plan,
// the fourth fails when it runs, and the fifth needs workspace, which it overwrites.

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda/dnn_api.h"
#include "hooks.h"

namespace {

namespace api = onnxgrad::device::cuda::dnn_api;
using onnxgrad::cuda_standin::card_memory;
using onnxgrad::cuda_standin::injected_error;
using onnxgrad::cuda_standin::submit_work;

enum Status : int { kOk = 0, kBadParam = 2000, kNotSupported = 3000, kExecutionFailed = 5000 };
enum Engine : int { kRounds, kNotDeterministic, kNoPlan, kFails, kWithWorkspace, kPlain };
constexpr std::int64_t kWorkspace = 1 << 12;
constexpr int kIllegalAddress = 700;

// A convolution: all that its graph says.
struct Problem {
  int pass = 0;
  std::vector<std::int64_t> x, w, y, strides, dilations, begins, ends;
  int type = 0;
};

struct Value {
  int type = 0;
  std::vector<std::int64_t> numbers;
  std::vector<void*> pointers;
};

struct Descriptor {
  int type = 0;
  bool is_final = false;
  std::map<int, Value> values;
  std::shared_ptr<Problem> problem;  // from the operation on
  int engine = kPlain;
};

struct Library {
  void* stream = nullptr;
};

// Attributes of a descriptor: type, and how many elements; 0: any number.
using Attributes = std::map<int, std::pair<int, std::int64_t>>;
const Attributes& attributes_of(int type) {
  using namespace api;
  static const auto operation = [](int first) {
    Attributes all{{first, {kTypeFloat, 1}}, {first + 1, {kTypeFloat, 1}}};
    for (int i = 2; i < 6; ++i) all[first + i] = {kTypeDescriptor, 1};
    return all;
  };
  static const std::map<int, Attributes> known{
      {kTensor,
       {{kTensorUid, {kTypeInt64, 1}},
        {kTensorDataType, {kTypeDataType, 1}},
        {kTensorAlignment, {kTypeInt64, 1}},
        {kTensorDims, {kTypeInt64, 0}},
        {kTensorStrides, {kTypeInt64, 0}}}},
      {kConvolution,
       {{kConvCompType, {kTypeDataType, 1}},
        {kConvMode, {kTypeConvMode, 1}},
        {kConvSpatialDims, {kTypeInt64, 1}},
        {kConvDilations, {kTypeInt64, 0}},
        {kConvStrides, {kTypeInt64, 0}},
        {kConvPrePads, {kTypeInt64, 0}},
        {kConvPostPads, {kTypeInt64, 0}}}},
      {kForward, operation(kForwardAlpha)},
      {kBackwardData, operation(kBackwardDataAlpha)},
      {kBackwardFilter, operation(kBackwardFilterAlpha)},
      {kGraph, {{kGraphHandle, {kTypeHandle, 1}}, {kGraphOperations, {kTypeDescriptor, 1}}}},
      {kHeuristic, {{kHeurGraph, {kTypeDescriptor, 1}}, {kHeurMode, {kTypeHeurMode, 1}}}},
      {kPlan, {{kPlanConfig, {kTypeDescriptor, 1}}, {kPlanHandle, {kTypeHandle, 1}}}},
      {kVariantPack,
       {{kPackUids, {kTypeInt64, 3}},
        {kPackPointers, {kTypePointer, 3}},
        {kPackWorkspace, {kTypePointer, 1}}}},
      {kEngine, {}},
      {kEngineConfig, {}},
  };
  static const Attributes none;
  const auto at = known.find(type);
  return at == known.end() ? none : at->second;
}

Descriptor* linked(const Descriptor& from, int attribute) {
  auto* const one = static_cast<Descriptor*>(from.values.at(attribute).pointers.front());
  return one != nullptr && one->is_final ? one : nullptr;
}

std::int64_t product(const std::vector<std::int64_t>& dims) {
  std::int64_t all = 1;
  for (const std::int64_t dim : dims) all *= dim;
  return all;
}

int finalize_tensor(const Descriptor& one) {
  const auto& dims = one.values.at(api::kTensorDims).numbers;
  const auto& strides = one.values.at(api::kTensorStrides).numbers;
  if (dims.size() < 4 || dims.size() > 5 || strides.size() != dims.size()) return kBadParam;
  std::int64_t stride = 1;  // dense, row-major
  for (std::size_t i = dims.size(); i-- > 0; stride *= dims[i]) {
    if (dims[i] <= 0 || strides[i] != stride) return kNotSupported;
  }
  return one.values.at(api::kTensorAlignment).numbers[0] == 16 ? kOk : kBadParam;
}

int finalize_operation(Descriptor& one) {
  const int first = one.type == api::kForward        ? api::kForwardAlpha
                    : one.type == api::kBackwardData ? api::kBackwardDataAlpha
                                                     : api::kBackwardFilterAlpha;
  const Descriptor* const convolution = linked(one, first + 2);
  const std::array tensors{linked(one, first + 4), linked(one, first + 3), linked(one, first + 5)};
  if (convolution == nullptr) return kBadParam;
  auto problem = std::make_shared<Problem>();
  problem->pass = one.type;
  std::array<std::vector<std::int64_t>*, 3> dims{&problem->x, &problem->w, &problem->y};
  for (std::size_t i = 0; i < 3; ++i) {
    if (tensors[i] == nullptr ||
        tensors[i]->values.at(api::kTensorUid).numbers[0] != static_cast<std::int64_t>(i) + 1) {
      return kBadParam;
    }
    *dims[i] = tensors[i]->values.at(api::kTensorDims).numbers;
    const int type = static_cast<int>(tensors[i]->values.at(api::kTensorDataType).numbers[0]);
    if (i > 0 && type != problem->type) return kNotSupported;
    problem->type = type;
  }
  problem->strides = convolution->values.at(api::kConvStrides).numbers;
  problem->dilations = convolution->values.at(api::kConvDilations).numbers;
  problem->begins = convolution->values.at(api::kConvPrePads).numbers;
  problem->ends = convolution->values.at(api::kConvPostPads).numbers;
  const std::size_t axes = problem->x.size() - 2;
  for (const auto* list :
       {&problem->strides, &problem->dilations, &problem->begins, &problem->ends}) {
    if (list->size() != axes) return kBadParam;
  }
  const Problem& p = *problem;
  if (p.w.size() != p.x.size() || p.y.size() != p.x.size() || p.x[0] != p.y[0] ||
      p.w[0] != p.y[1] || p.x[1] % p.w[1] != 0 || p.w[0] % (p.x[1] / p.w[1]) != 0) {
    return kBadParam;
  }
  for (std::size_t i = 0; i < axes; ++i) {
    const std::int64_t extent = (p.w[i + 2] - 1) * p.dilations[i] + 1;
    const std::int64_t room = p.x[i + 2] + p.begins[i] + p.ends[i] - extent;
    if (room < 0 || room / p.strides[i] + 1 != p.y[i + 2]) return kBadParam;
  }
  one.problem = std::move(problem);
  return kOk;
}

template <class T>
int convolve(const Problem& p, int engine, const std::array<std::uint64_t, 3>& addresses) {
  const std::array<std::int64_t, 3> sizes{product(p.x), product(p.w), product(p.y)};
  std::array<T*, 3> at{};
  for (std::size_t i = 0; i < 3; ++i) {
    at[i] = reinterpret_cast<T*>(
        card_memory(addresses[i], static_cast<std::size_t>(sizes[i]) * sizeof(T)));
    if (at[i] == nullptr) return kIllegalAddress;
  }
  const std::size_t result = p.pass == api::kForward ? 2 : p.pass == api::kBackwardData ? 0 : 1;
  std::vector<double> sums(static_cast<std::size_t>(sizes[result]));
  const auto value = [&](std::size_t i, std::int64_t element) {
    const auto number = static_cast<double>(at[i][element]);
    return engine == kRounds ? std::round(number * 64) / 64 : number;
  };
  // Two spatial axes are three with a leading one.
  const bool is_flat = p.x.size() == 4;
  const auto axis = [&](const std::vector<std::int64_t>& list, std::size_t i, std::size_t from,
                        std::int64_t absent) {
    return is_flat ? (i == 0 ? absent : list[from + i - 1]) : list[from + i];
  };
  std::array<std::int64_t, 3> in{}, taps{}, out{};
  for (std::size_t i = 0; i < 3; ++i) {
    in[i] = axis(p.x, i, 2, 1);
    taps[i] = axis(p.w, i, 2, 1);
    out[i] = axis(p.y, i, 2, 1);
  }
  const auto position = [&](std::size_t i, std::int64_t window, std::int64_t tap) {
    return window * axis(p.strides, i, 0, 1) + tap * axis(p.dilations, i, 0, 1) -
           axis(p.begins, i, 0, 0);
  };
  const std::int64_t groups = p.x[1] / p.w[1];
  const std::int64_t windows = out[0] * out[1] * out[2];
  const std::int64_t all_taps = taps[0] * taps[1] * taps[2];
  for (std::int64_t n = 0; n < p.x[0]; ++n) {
    for (std::int64_t m = 0; m < p.w[0]; ++m) {
      const std::int64_t group = m / (p.w[0] / groups);
      for (std::int64_t c = 0; c < p.w[1]; ++c) {
        for (std::int64_t o = 0; o < windows; ++o) {
          for (std::int64_t t = 0; t < all_taps; ++t) {
            const std::int64_t d = position(0, o / (out[1] * out[2]), t / (taps[1] * taps[2]));
            const std::int64_t h = position(1, o / out[2] % out[1], t / taps[2] % taps[1]);
            const std::int64_t w = position(2, o % out[2], t % taps[2]);
            if (d < 0 || d >= in[0] || h < 0 || h >= in[1] || w < 0 || w >= in[2]) continue;
            const std::int64_t x =
                (((n * groups + group) * p.w[1] + c) * in[0] + d) * in[1] * in[2] + h * in[2] + w;
            const std::int64_t f = (m * p.w[1] + c) * all_taps + t;
            const std::int64_t y = (n * p.w[0] + m) * windows + o;
            if (result == 2) sums[static_cast<std::size_t>(y)] += value(0, x) * value(1, f);
            if (result == 0) sums[static_cast<std::size_t>(x)] += value(2, y) * value(1, f);
            if (result == 1) sums[static_cast<std::size_t>(f)] += value(2, y) * value(0, x);
          }
        }
      }
    }
  }
  for (std::size_t i = 0; i < sums.size(); ++i) at[result][i] = static_cast<T>(sums[i]);
  return kOk;
}

}  // namespace

#define ENTER(function) \
  if (const int error = injected_error(#function); error != kOk) return error

extern "C" {

std::size_t cudnnGetVersion() { return 91400; }
const char* cudnnGetErrorString(int status) {
  return status == kBadParam       ? "CUDNN_STATUS_BAD_PARAM"
         : status == kNotSupported ? "CUDNN_STATUS_NOT_SUPPORTED"
                                   : "CUDNN_STATUS_EXECUTION_FAILED";
}

int cudnnCreate(void** handle) {
  ENTER(cudnnCreate);
  *handle = new Library;
  return kOk;
}
int cudnnSetStream(void* handle, void* stream) {
  ENTER(cudnnSetStream);
  static_cast<Library*>(handle)->stream = stream;
  return kOk;
}

int cudnnBackendCreateDescriptor(int type, void** descriptor) {
  ENTER(cudnnBackendCreateDescriptor);
  const bool is_known =
      type == api::kEngine || type == api::kEngineConfig || !attributes_of(type).empty();
  if (!is_known) return kNotSupported;
  *descriptor = new Descriptor{.type = type};
  return kOk;
}
int cudnnBackendDestroyDescriptor(void* descriptor) {
  delete static_cast<Descriptor*>(descriptor);
  return kOk;
}

int cudnnBackendSetAttribute(void* descriptor, int attribute, int type, std::int64_t count,
                             const void* elements) {
  ENTER(cudnnBackendSetAttribute);
  auto& one = *static_cast<Descriptor*>(descriptor);
  const Attributes& known = attributes_of(one.type);
  const auto expected = known.find(attribute);
  if (one.is_final || expected == known.end() || expected->second.first != type || count < 1 ||
      (expected->second.second != 0 && expected->second.second != count)) {
    return kBadParam;
  }
  Value value{.type = type};
  for (std::int64_t i = 0; i < count; ++i) {
    switch (type) {
      case api::kTypeInt64:
        value.numbers.push_back(static_cast<const std::int64_t*>(elements)[i]);
        break;
      case api::kTypeFloat:
        value.numbers.push_back(static_cast<std::int64_t>(static_cast<const float*>(elements)[i]));
        break;
      case api::kTypePointer:
      case api::kTypeHandle:
      case api::kTypeDescriptor:
        value.pointers.push_back(static_cast<void* const*>(elements)[i]);
        break;
      default:
        value.numbers.push_back(static_cast<const int*>(elements)[i]);
    }
  }
  one.values[attribute] = std::move(value);
  return kOk;
}

int cudnnBackendFinalize(void* descriptor) {
  ENTER(cudnnBackendFinalize);
  auto& one = *static_cast<Descriptor*>(descriptor);
  for (const auto& [attribute, described] : attributes_of(one.type)) {
    if (!one.values.contains(attribute)) return kBadParam;
  }
  int status = kOk;
  const Descriptor* before = nullptr;
  switch (one.type) {
    case api::kTensor:
      status = finalize_tensor(one);
      break;
    case api::kForward:
    case api::kBackwardData:
    case api::kBackwardFilter:
      status = finalize_operation(one);
      break;
    case api::kGraph:
      before = linked(one, api::kGraphOperations);
      if (before == nullptr) return kBadParam;
      break;
    case api::kHeuristic:
      before = linked(one, api::kHeurGraph);
      if (before == nullptr) return kBadParam;
      break;
    case api::kPlan:
      before = linked(one, api::kPlanConfig);
      if (before == nullptr) return kBadParam;
      if (before->engine == kNoPlan) return kNotSupported;
      one.engine = before->engine;
      break;
    default:
      break;
  }
  if (before != nullptr) one.problem = before->problem;
  one.is_final = status == kOk;
  return status;
}

int cudnnBackendGetAttribute(void* descriptor, int attribute, int type, std::int64_t wanted,
                             std::int64_t* count, void* to) {
  ENTER(cudnnBackendGetAttribute);
  const auto& one = *static_cast<Descriptor*>(descriptor);
  if (!one.is_final) return kBadParam;
  *count = 0;
  const auto give = [&](Descriptor* other, int engine) {
    other->problem = one.problem;
    other->engine = engine;
    other->is_final = true;
    ++*count;
  };
  if (one.type == api::kHeuristic && attribute == api::kHeurResults &&
      type == api::kTypeDescriptor) {
    std::vector<int> engines{kPlain};
    if (one.values.at(api::kHeurMode).numbers[0] == api::kModeA) {
      engines = {kRounds, kNotDeterministic, kNoPlan, kFails, kWithWorkspace};
    }
    for (const int engine : engines) {
      if (*count < wanted) give(static_cast<Descriptor*>(static_cast<void**>(to)[*count]), engine);
    }
    return kOk;
  }
  if (one.type == api::kEngineConfig && attribute == api::kConfigEngine &&
      type == api::kTypeDescriptor) {
    give(static_cast<Descriptor*>(*static_cast<void**>(to)), one.engine);
    return kOk;
  }
  if (one.type == api::kEngine && attribute == api::kEngineNotes &&
      type == api::kTypeNumericalNote && wanted >= 2) {
    int* const notes = static_cast<int*>(to);
    if (one.engine == kRounds) {
      notes[0] = api::kNoteTensorCore;
      notes[1] = api::kNoteDownConvert;
      *count = 2;
    } else if (one.engine == kNotDeterministic) {
      notes[0] = api::kNoteNondeterministic;
      *count = 1;
    }
    return kOk;
  }
  if (one.type == api::kPlan && attribute == api::kPlanWorkspace && type == api::kTypeInt64) {
    *static_cast<std::int64_t*>(to) = one.engine == kWithWorkspace ? kWorkspace : 0;
    *count = 1;
    return kOk;
  }
  return kBadParam;
}

int cudnnBackendExecute(void* handle, void* plan, void* pack) {
  ENTER(cudnnBackendExecute);
  const auto& planned = *static_cast<Descriptor*>(plan);
  const auto& given = *static_cast<Descriptor*>(pack);
  if (planned.type != api::kPlan || !planned.is_final || given.type != api::kVariantPack ||
      !given.is_final) {
    return kBadParam;
  }
  if (planned.engine == kFails) return kExecutionFailed;
  const auto number = [](const void* at) { return reinterpret_cast<std::uintptr_t>(at); };
  std::array<std::uint64_t, 3> addresses{};
  const Value& uids = given.values.at(api::kPackUids);
  for (std::size_t i = 0; i < 3; ++i) {
    const std::int64_t uid = uids.numbers[i];
    if (uid < 1 || uid > 3) return kBadParam;
    addresses[static_cast<std::size_t>(uid - 1)] =
        number(given.values.at(api::kPackPointers).pointers[i]);
  }
  for (const std::uint64_t address : addresses) {
    if (address == 0 || address % 16 != 0) return kBadParam;
  }
  const std::uint64_t workspace = number(given.values.at(api::kPackWorkspace).pointers[0]);
  return submit_work(static_cast<Library*>(handle)->stream,
                     [problem = planned.problem, engine = planned.engine, addresses, workspace] {
                       if (engine == kWithWorkspace) {
                         std::byte* const memory = card_memory(workspace, kWorkspace);
                         if (memory == nullptr) return kIllegalAddress;
                         std::memset(memory, 0xFF, kWorkspace);
                       }
                       switch (problem->type) {
                         case api::kDataFloat:
                           return convolve<float>(*problem, engine, addresses);
                         case api::kDataDouble:
                           return convolve<double>(*problem, engine, addresses);
                         default:
                           return static_cast<int>(kNotSupported);
                       }
                     });
}

}  // extern "C"
