#include "device/cuda/dnn_graph.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "device/cuda/dnn_descriptor.h"

namespace onnxgrad::device::cuda {
namespace {

using dnn_api::finalize;
using dnn_api::link;
using dnn_api::set;
using dnn_api::set_sizes;

constexpr std::int64_t kDnnAlignment = 16;

enum TensorKind : int { kInMemory, kVirtual, kByValue };

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

}  // namespace onnxgrad::device::cuda
