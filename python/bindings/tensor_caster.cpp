#include "tensor_caster.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "onnxgrad/device_tensor.h"

namespace nb = nanobind;

namespace onnxgrad::python {
namespace {

using Code = nb::dlpack::dtype_code;

std::optional<DataType> dtype_from_dlpack(nb::dlpack::dtype dtype) {
  static constexpr std::pair<nb::dlpack::dtype, DataType> kTable[] = {
      {{static_cast<std::uint8_t>(Code::Float), 16, 1}, DataType::kFloat16},
      {{static_cast<std::uint8_t>(Code::Float), 32, 1}, DataType::kFloat32},
      {{static_cast<std::uint8_t>(Code::Float), 64, 1}, DataType::kFloat64},
      {{static_cast<std::uint8_t>(Code::Bfloat), 16, 1}, DataType::kBfloat16},
      {{static_cast<std::uint8_t>(Code::Int), 8, 1}, DataType::kInt8},
      {{static_cast<std::uint8_t>(Code::Int), 16, 1}, DataType::kInt16},
      {{static_cast<std::uint8_t>(Code::Int), 32, 1}, DataType::kInt32},
      {{static_cast<std::uint8_t>(Code::Int), 64, 1}, DataType::kInt64},
      {{static_cast<std::uint8_t>(Code::UInt), 8, 1}, DataType::kUint8},
      {{static_cast<std::uint8_t>(Code::UInt), 16, 1}, DataType::kUint16},
      {{static_cast<std::uint8_t>(Code::UInt), 32, 1}, DataType::kUint32},
      {{static_cast<std::uint8_t>(Code::UInt), 64, 1}, DataType::kUint64},
      {{static_cast<std::uint8_t>(Code::Bool), 8, 1}, DataType::kBool},
      {{static_cast<std::uint8_t>(Code::Complex), 64, 1}, DataType::kComplex64},
      {{static_cast<std::uint8_t>(Code::Complex), 128, 1}, DataType::kComplex128},
  };
  for (const auto& [known, ours] : kTable) {
    if (known == dtype) return ours;
  }
  return std::nullopt;
}

/// The type whose arrays NumPy shows; for types that it does not know one of the same width.
nb::dlpack::dtype dtype_to_dlpack(DataType dtype) {
  const auto bits = static_cast<std::uint8_t>(size_bits(dtype));
  const auto code = [dtype] {
    if (dtype == DataType::kBool) return Code::Bool;
    if (dtype == DataType::kComplex64 || dtype == DataType::kComplex128) return Code::Complex;
    if (dtype == DataType::kBfloat16) return Code::UInt;
    if (is_floating(dtype)) return Code::Float;
    const bool is_signed = dtype == DataType::kInt8 || dtype == DataType::kInt16 ||
                           dtype == DataType::kInt32 || dtype == DataType::kInt64;
    return is_signed ? Code::Int : Code::UInt;
  }();
  return {static_cast<std::uint8_t>(code), bits, 1};
}

bool is_known_to_numpy(DataType dtype) {
  return dtype == DataType::kBool || is_integer(dtype) || dtype == DataType::kComplex64 ||
         dtype == DataType::kComplex128 || (is_floating(dtype) && dtype != DataType::kBfloat16);
}

using HostArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

Tensor view_of(const HostArray& array, std::optional<DataType> dtype) {
  if (!dtype) throw nb::cast_error();
  std::vector<std::int64_t> dims(array.shape_ptr(), array.shape_ptr() + array.ndim());
  // A Tensor has one kind of pointer; feeds are only read. The handle may be dropped by any thread.
  return Tensor::view(*dtype, Dims(std::move(dims)), const_cast<void*>(array.data()),
                      std::make_shared<HostArray>(array));
}

// Elements of less than a byte, which NumPy has a byte each for: the first in the lowest bits.
Tensor packed(const HostArray& array, DataType dtype) {
  std::vector<std::int64_t> dims(array.shape_ptr(), array.shape_ptr() + array.ndim());
  Tensor tensor = Tensor::zeros(dtype, Dims(std::move(dims)));
  const auto* codes = static_cast<const std::uint8_t*>(array.data());
  const auto bits = static_cast<unsigned>(size_bits(dtype));
  const unsigned per_byte = 8 / bits;
  for (std::size_t i = 0; i < array.size(); ++i) {
    const unsigned code = (codes[i] & ((1U << bits) - 1)) << (i % per_byte * bits);
    tensor.mutable_raw()[i / per_byte] |= static_cast<std::byte>(code);
  }
  return tensor;
}

Tensor from_pair(const nb::tuple& pair) {
  if (nb::isinstance<nb::str>(pair[1])) {
    const auto array = nb::cast<HostArray>(pair[0]);
    const auto dtype = dtype_from_name(nb::cast<std::string>(pair[1]));
    if (dtype && size_bits(*dtype) < 8 && size_bits(*dtype) > 0 && array.dtype().bits == 8) {
      return packed(array, *dtype);
    }
    if (!dtype || size_bits(*dtype) != array.dtype().bits) throw nb::cast_error();
    return view_of(array, dtype);
  }
  return Tensor::from_strings(nb::cast<std::vector<std::string>>(pair[0]),
                              Dims(nb::cast<std::vector<std::int64_t>>(pair[1])));
}

nb::object array_of(const Tensor& tensor, const std::vector<std::size_t>& shape) {
  // The capsule holds a copy of the handle, which shares the numbers.
  auto keep = std::make_unique<Tensor>(tensor);
  void* const data = keep->mutable_raw();
  const nb::capsule owner(keep.get(), [](void* held) noexcept {
    const std::unique_ptr<Tensor> freed(static_cast<Tensor*>(held));
  });
  keep.release();         // NOLINT(bugprone-unused-return-value): the capsule owns it now
  static char empty = 0;  // NumPy wants an address even for no elements
  return nb::ndarray<nb::numpy>(data != nullptr ? data : &empty, shape.size(), shape.data(), owner,
                                nullptr, dtype_to_dlpack(tensor.dtype()))
      .cast();
}

}  // namespace

Tensor tensor_from_python(nb::handle source) {
  if (nb::isinstance<DeviceTensor>(source)) {
    const auto tensor = nb::cast<DeviceTensor>(source);
    const nb::gil_scoped_release unlocked;
    return tensor.to_host();
  }
  if (nb::isinstance<nb::tuple>(source)) {
    const auto pair = nb::borrow<nb::tuple>(source);
    if (pair.size() != 2) throw nb::cast_error();
    return from_pair(pair);
  }
  const auto array = nb::cast<HostArray>(source);
  return view_of(array, dtype_from_dlpack(array.dtype()));
}

nb::object tensor_to_python(const Tensor& tensor) {
  const auto dims = tensor.dims().values();
  if (tensor.dtype() == DataType::kString) {
    const auto strings = tensor.strings();
    const nb::object items = nb::cast(std::vector<std::string>(strings.begin(), strings.end()));
    const nb::object shape = nb::cast(std::vector<std::int64_t>(dims.begin(), dims.end()));
    return nb::make_tuple(nb::make_tuple(items, shape), "string");
  }
  std::vector<std::size_t> shape(dims.begin(), dims.end());
  if (is_known_to_numpy(tensor.dtype())) return array_of(tensor, shape);
  if (const int bits = size_bits(tensor.dtype()); bits < 8) {  // NumPy has a byte per element
    Tensor bytes = Tensor::empty(DataType::kUint8, tensor.dims());
    const auto codes = bytes.mutable_data<std::uint8_t>();
    const auto per_byte = static_cast<std::size_t>(8 / bits);
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const auto packed = std::to_integer<unsigned>(tensor.raw()[i / per_byte]);
      const auto shift = static_cast<unsigned>(i % per_byte) * static_cast<unsigned>(bits);
      codes[i] = static_cast<std::uint8_t>((packed >> shift) & ((1U << bits) - 1));
    }
    return nb::make_tuple(array_of(bytes, shape), std::string(dtype_name(tensor.dtype())));
  }
  return nb::make_tuple(array_of(tensor, shape), std::string(dtype_name(tensor.dtype())));
}

}  // namespace onnxgrad::python
