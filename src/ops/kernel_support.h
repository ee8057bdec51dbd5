#ifndef ONNXGRAD_OPS_KERNEL_SUPPORT_H_
#define ONNXGRAD_OPS_KERNEL_SUPPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/rounding.h"
#include "base/visit_types.h"
#include "opdef/kernel.h"

// Helpers shared by the reference kernels of several families.

namespace onnxgrad::ops {

using base::ceil_div;
using base::round_up;
using opdef::DynamicCall;
using opdef::KernelArgs;
using opdef::KernelOffer;
using opdef::KernelRequest;
using opdef::Launch;
using opdef::TensorDesc;

/// Returns the bytes of one element in memory (1, 2, 4, 8 or 16); 0 for strings and sub-byte types,
/// which kernels that only move data decline.
std::int64_t element_bytes(DataType dtype);

/// Declines with a reason such as "no kernel for Cast to string", for a type that is not supported.
KernelOffer decline_dtype(const KernelRequest& request, DataType dtype);

/// Type of the data that a kernel's function takes: (const Data&, KernelArgs[, const Launch&]).
template <class Data, class... Rest>
Data data_of(void (*run)(const Data&, KernelArgs, Rest...));
template <auto kRun>
using KernelData = decltype(data_of(kRun));

/// Kernel that calls kRun with the data that is stored for it.
template <auto kRun>
inline constexpr opdef::KernelFn kKernel =
    [](const void* raw, KernelArgs args, [[maybe_unused]] const Launch& launch) {
      const auto& data = *static_cast<const KernelData<kRun>*>(raw);
      if constexpr (std::is_invocable_v<decltype(kRun), decltype(data), KernelArgs>) {
        kRun(data, args);
      } else {
        kRun(data, args, launch);
      }
    };

/// Returns a kernel that owns `data` and receives its address.
template <class Data>
KernelOffer prepared(opdef::KernelFn fn, Data data, std::string label) {
  KernelOffer offer;
  offer.kernel.fn = fn;
  offer.kernel.data = std::make_shared<const Data>(std::move(data));
  offer.kernel.label = std::move(label);
  return offer;
}
/// Returns the kernel that calls kRun with `data`.
template <auto kRun>
KernelOffer prepared(KernelData<kRun> data, std::string label) {
  return prepared(kKernel<kRun>, std::move(data), std::move(label));
}

/// Returns f(T()), an offer, for the one of `Types` that is the element type of `dtype`; declines
/// others.
template <class... Types, class F>
KernelOffer offer_for_types(const KernelRequest& request, DataType dtype, F&& f) {
  KernelOffer offer;
  const bool is_one = base::visit_types<Types...>(dtype, [&](auto element) { offer = f(element); });
  return is_one ? offer : decline_dtype(request, dtype);
}

/// Returns element `i` of a float32 or float64 array.
inline double read_float(const std::byte* from, DataType dtype, std::int64_t i = 0) {
  if (dtype == DataType::kFloat64) return reinterpret_cast<const double*>(from)[i];
  return static_cast<double>(reinterpret_cast<const float*>(from)[i]);
}

/// Returns the elements of an integer input if they are known at plan time, else nullopt.
std::optional<std::vector<std::int64_t>> planned_ints(const KernelRequest& request,
                                                      std::size_t input);

/// Where indices come from, for messages.
struct IndexSource {
  std::string node;   ///< that reads them
  std::string value;  ///< what they are before operators that only reshape or cast them
  Dims dims;          ///< of that value
};

/// The source of the indices in `input`.
IndexSource index_source(const KernelRequest& request, std::size_t input);

[[noreturn]] void throw_index_error(std::int64_t index, std::int64_t size,
                                    const IndexSource& source, std::int64_t position);

/// Maps `index` in [-size, size), number `position` of its source, to [0, size).
/// Throws: DataError naming the node, the value and the position there, the index and the size.
inline std::int64_t checked_index(std::int64_t index, std::int64_t size, const IndexSource& source,
                                  std::int64_t position) {
  if (index < -size || index >= size) throw_index_error(index, size, source, position);
  return index < 0 ? index + size : index;
}

/// Adds a check of the indices in `input` to the kernel: in [-size, size), or in [0, size) if
/// `from_zero`; with several sizes, each row of indices has one index for each of them. Nothing is
/// added for a constant with valid indices.
void note_index_check(const KernelRequest& request, KernelOffer& offer, std::size_t input,
                      const std::vector<std::int64_t>& sizes, bool from_zero = false);

/// Calls f with a value of the unsigned type of `bytes` (1, 2, 4 or 8).
template <class Function>
void with_element_type(std::int64_t bytes, Function&& f) {
  if (bytes == 1)
    f(std::uint8_t{});
  else if (bytes == 2)
    f(std::uint16_t{});
  else if (bytes == 4)
    f(std::uint32_t{});
  else
    f(std::uint64_t{});
}

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_KERNEL_SUPPORT_H_
