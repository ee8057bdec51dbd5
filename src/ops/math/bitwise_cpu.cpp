#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <utility>

#include "device/cpu/elementwise_space.h"
#include "opdef/kernel.h"
#include "ops/kernel_support.h"

// One loop for all operators: over rows of the broadcast space, along which an operand is dense or
// has stride 0.

namespace onnxgrad::ops::bitwise_cpu {
namespace {

struct BitwiseData {
  device::Space space;  // operands a and b; for one operand, b is a
  int second_arg = 1;
  int output_arg = 2;
};

struct And {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};
struct Not {
  template <class T>
  static T apply(T a, T /*b*/) {
    return static_cast<T>(~a);
  }
};
// Shifts by the width or more yield 0.
struct Left {
  template <class T>
  static T apply(T a, T b) {
    constexpr T kBits = std::numeric_limits<T>::digits;
    return b < kBits ? static_cast<T>(a << b) : T{0};
  }
};
struct Right {
  template <class T>
  static T apply(T a, T b) {
    constexpr T kBits = std::numeric_limits<T>::digits;
    return b < kBits ? static_cast<T>(a >> b) : T{0};
  }
};

template <class Op, class T>
void run_along(const T* a, bool a_moves, const T* b, bool b_moves, T* y, std::int64_t count) {
  if (a_moves && b_moves) {
    for (std::int64_t i = 0; i < count; ++i) y[i] = Op::template apply<T>(a[i], b[i]);
  } else if (a_moves) {
    for (std::int64_t i = 0; i < count; ++i) y[i] = Op::template apply<T>(a[i], *b);
  } else if (b_moves) {
    for (std::int64_t i = 0; i < count; ++i) y[i] = Op::template apply<T>(*a, b[i]);
  } else {
    std::fill_n(y, count, Op::template apply<T>(*a, *b));
  }
}

template <class Op, class T>
void run_bitwise(const BitwiseData& task, KernelArgs args) {
  const device::Space& space = task.space;
  const T* a = args.at<T>(0);
  const T* b = args.at<T>(task.second_arg);
  T* y = args.at<T>(task.output_arg);
  const std::int64_t rows = space.rows();
  const std::int64_t run = space.run();
  if (run == 0) return;
  const std::size_t outer = space.dims.size() - 1;
  std::array<std::int64_t, Dims::kMaxRank> position{};
  for (std::int64_t row = 0; row < rows; ++row, y += run) {
    run_along<Op, T>(a, space.moves_along_run(0), b, space.moves_along_run(1), y, run);
    for (std::size_t axis = outer; axis-- > 0;) {
      a += space.strides[0][axis];
      b += space.strides[1][axis];
      if (++position[axis] < space.dims[axis]) break;
      a -= space.strides[0][axis] * space.dims[axis];
      b -= space.strides[1][axis] * space.dims[axis];
      position[axis] = 0;
    }
  }
}

template <class Op>
KernelOffer offer_bitwise(const KernelRequest& request) {
  const std::int64_t bytes = element_bytes(request.inputs[0].dtype);
  if (bytes == 0 || bytes > 8) return decline_dtype(request, request.inputs[0].dtype);
  const bool is_binary = request.inputs.size() > 1;
  const std::array<Dims, 2> dims{request.inputs[0].dims, request.inputs[is_binary ? 1 : 0].dims};
  BitwiseData data{.space = device::make_space(request.outputs[0].dims, dims, {}),
                   .second_arg = is_binary ? 1 : 0,
                   .output_arg = is_binary ? 2 : 1};
  KernelOffer offer;
  with_element_type(bytes, [&](auto element) {
    offer = prepared<run_bitwise<Op, decltype(element)>>(std::move(data), "bits");
  });
  for (int i = 0; i < (is_binary ? 2 : 1); ++i) {
    if (dims[static_cast<std::size_t>(i)] == request.outputs[0].dims) {
      offer.kernel.in_place.emplace_back(i, 0);
    }
  }
  return offer;
}

KernelOffer offer_shift(const KernelRequest& request) {
  return request.node.string_attribute("direction") == "LEFT" ? offer_bitwise<Left>(request)
                                                              : offer_bitwise<Right>(request);
}

}  // namespace

void register_bitwise_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "BitwiseAnd", 0, offer_bitwise<And>);
  registry.add("", "BitwiseOr", 0, offer_bitwise<Or>);
  registry.add("", "BitwiseXor", 0, offer_bitwise<Xor>);
  registry.add("", "BitwiseNot", 0, offer_bitwise<Not>);
  registry.add("", "BitShift", 0, offer_shift);
}

}  // namespace onnxgrad::ops::bitwise_cpu
