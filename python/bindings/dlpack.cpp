#include "dlpack.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace nb = nanobind;

namespace onnxgrad::python {
namespace {

// The structures of dlpack.h, version 1.1.
struct DlType {
  std::uint8_t code = 0;
  std::uint8_t bits = 0;
  std::uint16_t lanes = 1;
  bool operator==(const DlType&) const = default;
};
struct DlTensor {
  void* data = nullptr;
  DlpackDevice device = {};
  std::int32_t rank = 0;
  DlType dtype = {};
  std::int64_t* shape = nullptr;
  std::int64_t* strides = nullptr;  // in elements; nullptr: row-major
  std::uint64_t byte_offset = 0;
};
struct Plain {
  DlTensor tensor = {};
  void* context = nullptr;
  void (*deleter)(Plain*) = nullptr;
};
struct Versioned {
  std::uint32_t major = 1;
  std::uint32_t minor = 1;
  void* context = nullptr;
  void (*deleter)(Versioned*) = nullptr;
  std::uint64_t flags = 0;
  DlTensor tensor = {};
};
constexpr std::uint64_t kReadOnly = 1;
constexpr std::uint32_t kMajor = 1;

template <class Managed>
constexpr const char* kName = "dltensor";
template <>
constexpr const char* kName<Versioned> = "dltensor_versioned";
template <class Managed>
constexpr const char* kUsedName = "used_dltensor";
template <>
constexpr const char* kUsedName<Versioned> = "used_dltensor_versioned";

constexpr std::pair<DataType, DlType> kTypes[] = {
    {DataType::kInt8, {0, 8}},
    {DataType::kInt16, {0, 16}},
    {DataType::kInt32, {0, 32}},
    {DataType::kInt64, {0, 64}},
    {DataType::kUint8, {1, 8}},
    {DataType::kUint16, {1, 16}},
    {DataType::kUint32, {1, 32}},
    {DataType::kUint64, {1, 64}},
    {DataType::kFloat16, {2, 16}},
    {DataType::kFloat32, {2, 32}},
    {DataType::kFloat64, {2, 64}},
    {DataType::kBfloat16, {4, 16}},
    {DataType::kComplex64, {5, 64}},
    {DataType::kComplex128, {5, 128}},
    {DataType::kBool, {6, 8}},
    {DataType::kFloat8E4M3FN, {10, 8}},
    {DataType::kFloat8E4M3FNUZ, {11, 8}},
    {DataType::kFloat8E5M2, {12, 8}},
    {DataType::kFloat8E5M2FNUZ, {13, 8}},
    {DataType::kFloat8E8M0, {14, 8}},
};

// An array of ours for another library, until that releases it.
template <class Managed>
struct Lent {
  Managed managed = {};
  DeviceTensor tensor;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
};

template <class Managed>
void release(Managed* managed) {
  const std::unique_ptr<Lent<Managed>> freed(static_cast<Lent<Managed>*>(managed->context));
}

// Frees the array of a capsule that nobody has taken.
template <class Managed>
void free_capsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, kName<Managed>) == 0) return;
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, kName<Managed>));
  if (managed->deleter != nullptr) managed->deleter(managed);
}

template <class Managed>
nb::object capsule_of(const DeviceTensor& tensor, DlType dtype) {
  auto lent = std::make_unique<Lent<Managed>>();
  lent->tensor = tensor;
  const auto dims = tensor.dims().values();
  lent->shape.assign(dims.begin(), dims.end());
  lent->strides.assign(dims.size(), 1);
  for (std::size_t i = dims.size(); i-- > 1;) {
    lent->strides[i - 1] = lent->strides[i] * std::max<std::int64_t>(dims[i], 1);
  }
  Managed& managed = lent->managed;
  managed.tensor = {.data = tensor.address(),
                    .device = tensor.dlpack_device(),
                    .rank = static_cast<std::int32_t>(dims.size()),
                    .dtype = dtype,
                    .shape = lent->shape.data(),
                    .strides = lent->strides.data()};
  managed.context = lent.get();
  managed.deleter = release<Managed>;
  if constexpr (std::is_same_v<Managed, Versioned>) {
    if (tensor.is_read_only()) managed.flags = kReadOnly;
  }
  PyObject* const capsule = PyCapsule_New(&managed, kName<Managed>, free_capsule<Managed>);
  if (capsule == nullptr) throw nb::python_error();
  (void)lent.release();  // the capsule, or who takes it, releases it
  return nb::steal(capsule);
}

bool is_row_major(const DlTensor& tensor) {
  if (tensor.strides == nullptr) return true;
  std::int64_t expected = 1;
  for (std::int32_t i = tensor.rank; i-- > 0;) {
    if (tensor.shape[i] == 0) return true;
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

template <class Managed>
DeviceTensor taken(Managed* managed) {
  std::shared_ptr<const void> owner(managed, [](Managed* freed) {
    if (freed->deleter != nullptr) freed->deleter(freed);
  });
  const DlTensor& tensor = managed->tensor;
  const auto* const known = std::ranges::find(
      kTypes, tensor.dtype, [](const std::pair<DataType, DlType>& row) { return row.second; });
  if (known == std::end(kTypes)) {
    throw DataError({.what = "an array of DLPack type " + std::to_string(tensor.dtype.code) +
                             " of " + std::to_string(tensor.dtype.bits) + " bits",
                     .hint = "Convert it to a floating, integer or bool type."});
  }
  if (!is_row_major(tensor)) {
    throw DataError({.what = "an array on a device whose elements are not in row-major order",
                     .hint = "Make it contiguous in its library first."});
  }
  bool is_read_only = false;
  if constexpr (std::is_same_v<Managed, Versioned>)
    is_read_only = (managed->flags & kReadOnly) != 0;
  Dims dims(std::vector<std::int64_t>(tensor.shape, tensor.shape + tensor.rank));
  return DeviceTensor::borrow(tensor.device,
                              static_cast<std::byte*>(tensor.data) + tensor.byte_offset,
                              known->first, std::move(dims), is_read_only, std::move(owner));
}

template <class Managed>
DeviceTensor take(nb::handle capsule) {
  auto* const managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), kName<Managed>));
  if constexpr (std::is_same_v<Managed, Versioned>) {
    if (managed->major != kMajor) {
      throw DataError({.what = "an array of DLPack " + std::to_string(managed->major),
                       .hint = "Update onnxgrad, or copy the array to the host first."});
    }
  }
  if (PyCapsule_SetName(capsule.ptr(), kUsedName<Managed>) != 0) throw nb::python_error();
  return taken(managed);
}

}  // namespace

nb::object to_capsule(const DeviceTensor& tensor, bool is_versioned) {
  const auto* const known =
      std::ranges::find(kTypes, tensor.dtype(), &std::pair<DataType, DlType>::first);
  if (known == std::end(kTypes)) {
    throw nb::buffer_error("DLPack has no arrays of this type; copy the array to the host");
  }
  if (is_versioned) return capsule_of<Versioned>(tensor, known->second);
  if (tensor.is_read_only()) {
    throw nb::buffer_error("a read-only array needs DLPack 1.0: pass max_version=(1, 0)");
  }
  return capsule_of<Plain>(tensor, known->second);
}

DeviceTensor from_capsule(nb::handle capsule) {
  if (PyCapsule_IsValid(capsule.ptr(), kName<Versioned>) != 0) return take<Versioned>(capsule);
  if (PyCapsule_IsValid(capsule.ptr(), kName<Plain>) != 0) return take<Plain>(capsule);
  throw DataError({.what = "no capsule of DLPack, or one that was taken before",
                   .hint = "Give what __dlpack__() returns, once."});
}

}  // namespace onnxgrad::python
