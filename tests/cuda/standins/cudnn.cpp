// Stands in for cuDNN's backend API: graphs of operations by plain loops on the memory of the
// driver's stand-in, done when its streams are. Stricter than the library: attributes that a
// descriptor has not, wrong types and numbers of elements, changes after it is finalized, missing
// attributes and sizes that do not fit are errors. Heuristics propose engines of which the first
// rounds factors to 10 bits (notes TENSOR_CORE, DOWN_CONVERT_INPUTS), the second is not
// deterministic, the third has no plan, the fourth fails when it runs, and the fifth needs
// workspace, which it overwrites. A plan as JSON is a text of its own.

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cudnn_operations.h"
#include "cudnn_plan_text.h"
#include "device/cuda/dnn_api.h"
#include "hooks.h"

// Counts a call, or something else that can fail, and returns an error that is injected into it.
#define ENTER(function) \
  if (const int error = injected_error(#function); error != kOk) return error

namespace {

namespace api = onnxgrad::device::cuda::dnn_api;
using onnxgrad::cuda_standin::card_memory;
using onnxgrad::cuda_standin::DnnOperation;
using onnxgrad::cuda_standin::DnnTensor;
using onnxgrad::cuda_standin::injected_error;
using onnxgrad::cuda_standin::is_consistent;
using onnxgrad::cuda_standin::plan_from;
using onnxgrad::cuda_standin::run_operations;
using onnxgrad::cuda_standin::submit_work;
using onnxgrad::cuda_standin::to_text;

enum Status : int { kOk = 0, kBadParam = 2000, kNotSupported = 3000, kExecutionFailed = 5000 };
enum Engine : int { kRounds, kNotDeterministic, kNoPlan, kFails, kWithWorkspace, kPlain };
constexpr std::int64_t kWorkspace = 1 << 12;
constexpr int kIllegalAddress = 700;

using Operations = std::vector<DnnOperation>;

struct Value {
  int type = 0;
  std::vector<std::int64_t> numbers = {};
  std::vector<double> reals = {};
  std::vector<void*> pointers = {};
};

struct Descriptor {
  int type = 0;
  bool is_final = false;
  std::map<int, Value> values = {};
  DnnOperation operation = {};                        // of an operation
  std::shared_ptr<const Operations> operations = {};  // from the graph on
  int engine = kPlain;

  bool has(int attribute) const { return values.contains(attribute); }
  std::int64_t number(int attribute, std::int64_t absent = 0) const {
    return has(attribute) ? values.at(attribute).numbers[0] : absent;
  }
};

struct Library {
  void* stream = nullptr;
};

struct Attribute {
  int type = 0;
  std::int64_t count = 1;  // 0: any number
  bool is_optional = false;
};
using Attributes = std::map<int, Attribute>;
const Attributes& attributes_of(int type) {
  using namespace api;
  static const auto convolution = [](int first) {
    Attributes all{{first, {kTypeFloat}}, {first + 1, {kTypeFloat}}};
    for (int i = 2; i < 6; ++i) all[first + i] = {kTypeDescriptor};
    return all;
  };
  static const std::map<int, Attributes> known{
      {kTensor,
       {{kTensorUid, {kTypeInt64}},
        {kTensorDataType, {kTypeDataType}},
        {kTensorAlignment, {kTypeInt64}},
        {kTensorDims, {kTypeInt64, 0}},
        {kTensorStrides, {kTypeInt64, 0}},
        {kTensorIsVirtual, {kTypeBoolean, 1, true}},
        {kTensorIsByValue, {kTypeBoolean, 1, true}}}},
      {kConvolution,
       {{kConvCompType, {kTypeDataType}},
        {kConvMode, {kTypeConvMode}},
        {kConvSpatialDims, {kTypeInt64}},
        {kConvDilations, {kTypeInt64, 0}},
        {kConvStrides, {kTypeInt64, 0}},
        {kConvPrePads, {kTypeInt64, 0}},
        {kConvPostPads, {kTypeInt64, 0}}}},
      {kForward, convolution(kForwardAlpha)},
      {kBackwardData, convolution(kBackwardDataAlpha)},
      {kBackwardFilter, convolution(kBackwardFilterAlpha)},
      {kPointwise,
       {{api::kPointwiseMode, {kTypePointwiseMode}},
        {kPointwisePrecision, {kTypeDataType}},
        {kPointwiseNan, {kTypeNanPropagation, 1, true}},
        {kPointwiseLow, {kTypeDouble, 1, true}},
        {kPointwiseHigh, {kTypeDouble, 1, true}},
        {kPointwiseAxis, {kTypeInt64, 1, true}}}},
      {kPointwiseOperation,
       {{kPointwiseDescriptor, {kTypeDescriptor}},
        {kPointwiseDescriptor + 1, {kTypeDescriptor}},
        {kPointwiseDescriptor + 2, {kTypeDescriptor, 1, true}},
        {kPointwiseDescriptor + 3, {kTypeDescriptor}},
        {kPointwiseCondition, {kTypeDescriptor, 1, true}}}},
      {kMatmul, {{kMatmulPrecision, {kTypeDataType}}}},
      {kMatmulOperation,
       {{kMatmulA, {kTypeDescriptor}},
        {kMatmulA + 1, {kTypeDescriptor}},
        {kMatmulA + 2, {kTypeDescriptor}},
        {kMatmulA + 3, {kTypeDescriptor}}}},
      {kReduction,
       {{kReductionOperator, {kTypeReduceOperator}}, {kReductionPrecision, {kTypeDataType}}}},
      {kReductionOperation,
       {{kReductionX, {kTypeDescriptor}},
        {kReductionX + 1, {kTypeDescriptor}},
        {kReductionX + 2, {kTypeDescriptor}}}},
      {kResample,
       {{kResampleMode, {kTypeResampleMode}},
        {kResamplePrecision, {kTypeDataType}},
        {kResampleSpatialDims, {kTypeInt64}},
        {kResamplePostPads, {kTypeInt64, 0}},
        {kResamplePrePads, {kTypeInt64, 0}},
        {kResampleStrides, {kTypeInt64, 0}},
        {kResampleWindow, {kTypeInt64, 0}},
        {kResampleNan, {kTypeNanPropagation}},
        {kResamplePadding, {kTypePaddingMode}}}},
      {kResampleForward,
       {{kResampleForwardX, {kTypeDescriptor}},
        {kResampleForwardX + 1, {kTypeDescriptor}},
        {kResampleForwardDescriptor, {kTypeDescriptor}}}},
      {kResampleBackward,
       {{kResampleBackwardX, {kTypeDescriptor}},
        {kResampleBackwardX + 1, {kTypeDescriptor}},
        {kResampleBackwardDescriptor, {kTypeDescriptor}}}},
      {kReshapeOperation, {{kReshapeX, {kTypeDescriptor}}, {kReshapeX + 1, {kTypeDescriptor}}}},
      {kGraph, {{kGraphHandle, {kTypeHandle}}, {kGraphOperations, {kTypeDescriptor, 0}}}},
      {kHeuristic, {{kHeurGraph, {kTypeDescriptor}}, {api::kHeurMode, {kTypeHeurMode}}}},
      {kPlan,
       {{kPlanConfig, {kTypeDescriptor, 1, true}},
        {kPlanJson, {kTypeChar, 0, true}},
        {kPlanHandle, {kTypeHandle}}}},
      {kVariantPack,
       {{kPackUids, {kTypeInt64, 0}},
        {kPackPointers, {kTypePointer, 0}},
        {kPackWorkspace, {kTypePointer}}}},
      {kEngine, {}},
      {kEngineConfig, {}},
  };
  static const Attributes none;
  const auto at = known.find(type);
  return at == known.end() ? none : at->second;
}

const Descriptor* linked(const Descriptor& from, int attribute, std::size_t i = 0) {
  if (!from.has(attribute)) return nullptr;
  const auto* const one = static_cast<Descriptor*>(from.values.at(attribute).pointers[i]);
  return one != nullptr && one->is_final ? one : nullptr;
}

// No two elements in one place.
int finalize_tensor(const Descriptor& one) {
  const auto& dims = one.values.at(api::kTensorDims).numbers;
  const auto& strides = one.values.at(api::kTensorStrides).numbers;
  if (dims.size() < 4 || dims.size() > 5 || strides.size() != dims.size()) return kBadParam;
  std::map<std::int64_t, std::int64_t> by_stride;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] <= 0 || strides[i] <= 0) return kBadParam;
    if (dims[i] > 1 && !by_stride.emplace(strides[i], dims[i]).second) return kNotSupported;
  }
  std::int64_t expected = 1;
  for (const auto& [stride, dim] : by_stride) {
    if (stride < expected) return kNotSupported;
    expected = stride * dim;
  }
  return one.number(api::kTensorAlignment) == 16 ? kOk : kBadParam;
}

bool take_tensor(const Descriptor& from, int attribute, DnnTensor& to) {
  const Descriptor* const tensor = linked(from, attribute);
  if (tensor == nullptr || tensor->type != api::kTensor) return false;
  to = {.uid = tensor->number(api::kTensorUid),
        .dims = tensor->values.at(api::kTensorDims).numbers,
        .strides = tensor->values.at(api::kTensorStrides).numbers,
        .type = static_cast<int>(tensor->number(api::kTensorDataType)),
        .is_virtual = tensor->number(api::kTensorIsVirtual) != 0,
        .is_by_value = tensor->number(api::kTensorIsByValue) != 0};
  return true;
}

// A plan of a configuration, or one that was written as text.
int finalize_plan(Descriptor& one) {
  if (one.has(api::kPlanConfig) == one.has(api::kPlanJson)) return kBadParam;
  if (one.has(api::kPlanJson)) {
    ENTER(plan_from_json);
    const auto& characters = one.values.at(api::kPlanJson).numbers;
    const auto plan = plan_from(std::string(characters.begin(), characters.end()));
    if (!plan) return kBadParam;
    one.engine = plan->engine;
    one.operations = std::make_shared<const Operations>(plan->operations);
    return kOk;
  }
  const Descriptor* const config = linked(one, api::kPlanConfig);
  if (config == nullptr) return kBadParam;
  if (config->engine == kNoPlan) return kNotSupported;
  one.engine = config->engine;
  one.operations = config->operations;
  return kOk;
}

// Reads the tensors of an operation from its attributes.
int finalize_operation(Descriptor& one) {
  DnnOperation& op = one.operation;
  op.type = one.type;
  struct Links {
    int x, b, y, descriptor;
  };
  const int first = one.type == api::kForward        ? api::kForwardAlpha
                    : one.type == api::kBackwardData ? api::kBackwardDataAlpha
                                                     : api::kBackwardFilterAlpha;
  Links links{.x = first + 4, .b = first + 3, .y = first + 5, .descriptor = first + 2};
  if (one.type == api::kPointwiseOperation) {
    const int pointwise = api::kPointwiseDescriptor;
    links = {.x = pointwise + 1, .b = pointwise + 2, .y = pointwise + 3, .descriptor = pointwise};
  } else if (one.type == api::kMatmulOperation) {
    const int a = api::kMatmulA;
    links = {.x = a, .b = a + 1, .y = a + 2, .descriptor = a + 3};
  } else if (one.type == api::kReductionOperation) {
    const int x = api::kReductionX;
    links = {.x = x, .b = -1, .y = x + 1, .descriptor = x + 2};
  } else if (one.type == api::kReshapeOperation) {
    links = {.x = api::kReshapeX, .b = -1, .y = api::kReshapeX + 1, .descriptor = -1};
  }
  if (one.type == api::kResampleForward) {
    links = {.x = api::kResampleForwardX,
             .b = -1,
             .y = api::kResampleForwardX + 1,
             .descriptor = api::kResampleForwardDescriptor};
  } else if (one.type == api::kResampleBackward) {
    links = {.x = api::kResampleBackwardX,
             .b = -1,
             .y = api::kResampleBackwardX + 1,
             .descriptor = api::kResampleBackwardDescriptor};
  }
  op.has_b = one.has(links.b);
  if (!take_tensor(one, links.x, op.x) || !take_tensor(one, links.y, op.y) ||
      (op.has_b && !take_tensor(one, links.b, op.b))) {
    return kBadParam;
  }
  const Descriptor* const described = linked(one, links.descriptor);
  if (links.descriptor >= 0 && described == nullptr) return kBadParam;
  if (one.type == api::kPointwiseOperation) {
    op.mode = static_cast<int>(described->number(api::kPointwiseMode));
    op.axis = described->number(api::kPointwiseAxis);
    if (op.mode == api::kReluForward) {
      const bool keeps_nan = described->number(api::kPointwiseNan) == api::kPropagateNan;
      if (!keeps_nan || !described->has(api::kPointwiseLow)) return kNotSupported;
      op.low = described->values.at(api::kPointwiseLow).reals[0];
      op.high = described->values.at(api::kPointwiseHigh).reals[0];
    }
    if (op.mode == api::kSelect && !take_tensor(one, api::kPointwiseCondition, op.condition)) {
      return kBadParam;
    }
  } else if (one.type == api::kReductionOperation) {
    op.mode = static_cast<int>(described->number(api::kReductionOperator));
  } else if (one.type == api::kResampleForward || one.type == api::kResampleBackward) {
    op.mode = static_cast<int>(described->number(api::kResampleMode));
    op.strides = described->values.at(api::kResampleStrides).numbers;
    op.window = described->values.at(api::kResampleWindow).numbers;
    op.begins = described->values.at(api::kResamplePrePads).numbers;
    op.ends = described->values.at(api::kResamplePostPads).numbers;
    if (one.type == api::kResampleBackward && op.mode == api::kMaximumPool) return kNotSupported;
  } else if (links.descriptor == first + 2) {
    op.strides = described->values.at(api::kConvStrides).numbers;
    op.dilations = described->values.at(api::kConvDilations).numbers;
    op.begins = described->values.at(api::kConvPrePads).numbers;
    op.ends = described->values.at(api::kConvPostPads).numbers;
    const bool is_wide = described->number(api::kConvCompType) == api::kDataDouble;
    if (is_wide != (op.x.type == api::kDataDouble)) return kNotSupported;
  }
  return is_consistent(op) ? kOk : kBadParam;
}

int finalize_graph(Descriptor& one) {
  auto operations = std::make_shared<Operations>();
  const std::size_t count = one.values.at(api::kGraphOperations).pointers.size();
  for (std::size_t i = 0; i < count; ++i) {
    const Descriptor* const operation = linked(one, api::kGraphOperations, i);
    if (operation == nullptr || operation->operation.type != operation->type) return kBadParam;
    operations->push_back(operation->operation);
  }
  one.operations = std::move(operations);
  return kOk;
}

// Heads of 16 bits whose rows are no multiples of 16 bytes have none.
bool have_engines(const Operations& operations) {
  for (const DnnOperation& op : operations) {
    const bool is_half = op.x.type == api::kDataHalf || op.x.type == api::kDataBfloat16;
    if (op.type == api::kMatmulOperation && is_half && !op.x.is_virtual &&
        op.x.dims.back() % 8 != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace

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
  if (one.is_final || expected == known.end() || expected->second.type != type || count < 1 ||
      (expected->second.count != 0 && expected->second.count != count)) {
    return kBadParam;
  }
  Value value{.type = type};
  for (std::int64_t i = 0; i < count; ++i) {
    switch (type) {
      case api::kTypeInt64:
        value.numbers.push_back(static_cast<const std::int64_t*>(elements)[i]);
        break;
      case api::kTypeFloat:
        value.reals.push_back(static_cast<double>(static_cast<const float*>(elements)[i]));
        break;
      case api::kTypeDouble:
        value.reals.push_back(static_cast<const double*>(elements)[i]);
        break;
      case api::kTypeBoolean:
        value.numbers.push_back(static_cast<const bool*>(elements)[i] ? 1 : 0);
        break;
      case api::kTypePointer:
      case api::kTypeHandle:
      case api::kTypeDescriptor:
        value.pointers.push_back(static_cast<void* const*>(elements)[i]);
        break;
      case api::kTypeChar:
        value.numbers.push_back(static_cast<const char*>(elements)[i]);
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
    if (!described.is_optional && !one.has(attribute)) return kBadParam;
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
    case api::kPointwiseOperation:
    case api::kMatmulOperation:
    case api::kReductionOperation:
    case api::kResampleForward:
    case api::kResampleBackward:
    case api::kReshapeOperation:
      status = finalize_operation(one);
      break;
    case api::kGraph:
      status = finalize_graph(one);
      break;
    case api::kHeuristic:
      before = linked(one, api::kHeurGraph);
      if (before == nullptr) return kBadParam;
      break;
    case api::kPlan:
      status = finalize_plan(one);
      break;
    default:
      break;
  }
  if (before != nullptr) one.operations = before->operations;
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
    other->operations = one.operations;
    other->engine = engine;
    other->is_final = true;
    ++*count;
  };
  if (one.type == api::kHeuristic && attribute == api::kHeurResults &&
      type == api::kTypeDescriptor) {
    if (!have_engines(*one.operations)) return kOk;
    std::vector<int> engines{kPlain};
    if (one.number(api::kHeurMode) == api::kModeA) {
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
  if (one.type == api::kPlan && attribute == api::kPlanJson && type == api::kTypeChar) {
    const std::string text = to_text({.engine = one.engine, .operations = *one.operations});
    *count = std::ssize(text);
    if (wanted >= *count) std::memcpy(to, text.data(), text.size());
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
  std::map<std::int64_t, std::uint64_t> addresses;
  const std::vector<std::int64_t>& uids = given.values.at(api::kPackUids).numbers;
  const std::vector<void*>& pointers = given.values.at(api::kPackPointers).pointers;
  if (uids.size() != pointers.size()) return kBadParam;
  for (std::size_t i = 0; i < uids.size(); ++i) addresses[uids[i]] = number(pointers[i]);
  for (const DnnOperation& op : *planned.operations) {
    for (const DnnTensor* tensor : {&op.x, &op.b, &op.y}) {
      if (tensor->uid == 0 || tensor->is_virtual) continue;
      const std::uint64_t address = addresses[tensor->uid];
      if (address == 0 || (!tensor->is_by_value && address % 16 != 0)) return kBadParam;
    }
  }
  const std::uint64_t workspace = number(given.values.at(api::kPackWorkspace).pointers[0]);
  return submit_work(
      static_cast<Library*>(handle)->stream,
      [operations = planned.operations, engine = planned.engine, addresses, workspace] {
        if (engine == kWithWorkspace) {
          std::byte* const memory = card_memory(workspace, kWorkspace);
          if (memory == nullptr) return kIllegalAddress;
          std::memset(memory, 0xFF, kWorkspace);
        }
        return run_operations(*operations, engine == kRounds, addresses);
      });
}

}  // extern "C"
