#include "device/device_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "base/check.h"

namespace onnxgrad {
namespace {

using device::Device;
using device::Stream;
using device::TransferStream;

std::int64_t row_bytes(const DeviceTensor& tensor) {
  const std::int64_t rows = tensor.dims()[0];
  return rows == 0 ? 0 : tensor.size_bytes() / rows;
}

Dims with_rows(const Dims& dims, std::int64_t rows) {
  std::vector<std::int64_t> sizes(dims.begin(), dims.end());
  sizes[0] = rows;
  return Dims(std::move(sizes));
}

Tensor join_on_host(std::span<const DeviceTensor> parts, DataType dtype, const Dims& dims) {
  Tensor whole = Tensor::empty(dtype, dims);
  std::int64_t at = 0;
  for (const DeviceTensor& part : parts) {
    const Tensor own = part.to_host();
    if (dtype == DataType::kString) {
      std::ranges::copy(own.strings(), whole.mutable_strings().begin() + at);
      at += own.num_elements();
    } else {
      std::memcpy(whole.mutable_raw() + at, own.raw(), static_cast<std::size_t>(own.size_bytes()));
      at += own.size_bytes();
    }
  }
  return whole;
}

// The elements of arrays in the memory of one device, one after the other. Waits for the copies, so
// that the arrays are not needed afterwards.
DeviceTensor copied(std::span<const DeviceTensor> parts, const Dims& dims) {
  Device* const device = parts.front().impl().device;
  const DataType dtype = parts.front().dtype();
  device::Buffer buffer = device->allocate(dims.size_bytes(dtype));
  const device::Address address = buffer.address;
  std::shared_ptr<const device::Event> ready =
      TransferStream::of(*device).use([&](const std::shared_ptr<Stream>& stream) {
        device::Address to = address;
        for (const DeviceTensor& part : parts) {
          ONNXGRAD_ASSERT(part.impl().device == device);
          if (part.size_bytes() == 0) continue;
          stream->wait_for(*part.impl().ready);
          stream->copy(to, part.impl().address, part.size_bytes());
          to = to + part.size_bytes();
        }
        auto last = device::mark_on(stream);
        stream->synchronize();
        return last;
      });
  return DeviceTensor(std::make_shared<const DeviceTensor::Impl>(
      DeviceTensor::Impl{.dtype = dtype,
                         .dims = dims,
                         .device = device,
                         .address = address,
                         .owner = device::kept_until(std::move(buffer), ready),
                         .ready = ready}));
}

}  // namespace

namespace device {

std::shared_ptr<const Event> mark_on(const std::shared_ptr<Stream>& stream) {
  struct Held {
    std::shared_ptr<Stream> stream;
    std::shared_ptr<Event> event;
  };
  auto held = std::make_shared<Held>(stream, stream->mark(/*is_timed=*/false));
  const Event* const event = held->event.get();
  return {std::move(held), event};
}

std::shared_ptr<const void> kept_until(Buffer buffer, std::shared_ptr<const Event> last) {
  struct Held {
    Held(Buffer memory, std::shared_ptr<const Event> event)
        : buffer(std::move(memory)), last(std::move(event)) {}
    ~Held() {
      try {
        if (!last->is_done()) last->wait();
      } catch (...) {  // NOLINT(bugprone-empty-catch): these elements are not needed
      }
    }
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;
    Buffer buffer;
    std::shared_ptr<const Event> last;
  };
  return std::make_shared<const Held>(std::move(buffer), std::move(last));
}

TransferStream& TransferStream::of(Device& device) {
  static std::mutex mutex;
  static auto* const streams = new std::map<Device*, TransferStream*>;  // as their threads
  const std::scoped_lock lock(mutex);
  TransferStream*& stream = (*streams)[&device];
  if (stream == nullptr) stream = new TransferStream(device);
  return *stream;
}

DeviceTensor copy_to(Device& device, const Tensor& tensor) {
  ONNXGRAD_ASSERT(!device.is_host() && tensor.dtype() != DataType::kString);
  Buffer buffer = device.allocate(tensor.size_bytes());
  const Address address = buffer.address;
  std::shared_ptr<const Event> ready =
      TransferStream::of(device).use([&](const std::shared_ptr<Stream>& stream) {
        stream->copy_in(address, tensor.raw(), tensor.size_bytes());
        return mark_on(stream);
      });
  return DeviceTensor(std::make_shared<const DeviceTensor::Impl>(
      DeviceTensor::Impl{.dtype = tensor.dtype(),
                         .dims = tensor.dims(),
                         .device = &device,
                         .address = address,
                         .owner = kept_until(std::move(buffer), ready),
                         .ready = ready}));
}

DeviceTensor aligned(const DeviceTensor& tensor) {
  const auto unit = static_cast<std::uintptr_t>(tensor.impl().device->alignment());
  return static_cast<std::uintptr_t>(tensor.impl().address) % unit == 0 ? tensor : tensor.copy();
}

}  // namespace device

DeviceTensor::DeviceTensor(Tensor tensor) {
  if (tensor.is_defined()) impl_ = std::make_shared<const Impl>(Impl{.host = std::move(tensor)});
}

DataType DeviceTensor::dtype() const {
  if (impl_ == nullptr) return DataType::kUndefined;
  return impl_->device == nullptr ? impl_->host.dtype() : impl_->dtype;
}

const Dims& DeviceTensor::dims() const {
  static const Dims none;
  if (impl_ == nullptr) return none;
  return impl_->device == nullptr ? impl_->host.dims() : impl_->dims;
}

std::string DeviceTensor::device() const {
  return impl_ == nullptr || impl_->device == nullptr ? "cpu" : impl_->device->name();
}

DlpackDevice DeviceTensor::dlpack_device() const {
  return impl_ == nullptr || impl_->device == nullptr ? DlpackDevice{}
                                                      : impl_->device->dlpack_device();
}

DeviceTensor DeviceTensor::rows(std::int64_t begin, std::int64_t end) const {
  if (dims().rank() == 0 || begin < 0 || begin > end || end > dims()[0]) {
    throw ShapeError({.what = fmt::format("rows {} to {} of an array of shape {}", begin, end,
                                          dims().to_string()),
                      .hint = "Give rows that it has."});
  }
  const std::int64_t offset = begin * row_bytes(*this);
  const Dims part_dims = with_rows(dims(), end - begin);
  Impl part = *impl_;
  if (part.device != nullptr) {
    part.dims = part_dims;
    part.address = part.address + offset;
  } else if (dtype() == DataType::kString) {
    const std::int64_t width = dims().product(1, dims().rank());
    const auto texts = part.host.strings().subspan(static_cast<std::size_t>(begin * width),
                                                   static_cast<std::size_t>((end - begin) * width));
    part.host = Tensor::from_strings({texts.begin(), texts.end()}, part_dims);
  } else {
    const auto whole = std::make_shared<Tensor>(part.host);
    part.host = Tensor::view(dtype(), part_dims, whole->mutable_raw() + offset, whole);
  }
  return DeviceTensor(std::make_shared<const Impl>(std::move(part)));
}

Tensor DeviceTensor::to_host() const {
  if (impl_ == nullptr || impl_->device == nullptr)
    return impl_ == nullptr ? Tensor() : impl_->host;
  Tensor copy = Tensor::empty(impl_->dtype, impl_->dims);
  TransferStream::of(*impl_->device).use([&](const std::shared_ptr<Stream>& stream) {
    stream->wait_for(*impl_->ready);
    if (copy.size_bytes() > 0)
      stream->copy_out(copy.mutable_raw(), impl_->address, copy.size_bytes());
    stream->synchronize();
  });
  return copy;
}

void* DeviceTensor::address() const {
  if (impl_ == nullptr) return nullptr;
  if (impl_->device != nullptr) return device::kernel_argument(impl_->address);
  Tensor shared = impl_->host;
  return shared.mutable_raw();
}

void DeviceTensor::wait() const {
  if (impl_ != nullptr && impl_->ready != nullptr) impl_->ready->wait();
}

void DeviceTensor::wait_in(std::intptr_t foreign_stream) const {
  if (impl_ == nullptr || impl_->ready == nullptr) return;
  impl_->device->order_after(*impl_->ready, foreign_stream);
}

bool DeviceTensor::is_read_only() const { return impl_ != nullptr && impl_->is_read_only; }

DeviceTensor DeviceTensor::copy() const {
  if (impl_ == nullptr) return {};
  if (impl_->device == nullptr) return DeviceTensor(impl_->host.clone());
  return copied({this, 1}, dims());
}

DeviceTensor DeviceTensor::joined(std::span<const DeviceTensor> parts) {
  const DeviceTensor& first = parts.front();
  std::int64_t rows = 0;
  for (const DeviceTensor& part : parts) {
    if (part.dims().rank() == 0 || part.dtype() != first.dtype() ||
        with_rows(part.dims(), 1) != with_rows(first.dims(), 1)) {
      throw ShapeError({.what = fmt::format("arrays of shapes {} and {} cannot be joined by rows",
                                            first.dims().to_string(), part.dims().to_string()),
                        .hint = "Give arrays that differ in their first dimension only."});
    }
    rows += part.dims()[0];
  }
  const Dims dims = with_rows(first.dims(), rows);
  if (!device::is_on_device(first)) {
    return DeviceTensor(join_on_host(parts, first.dtype(), dims));
  }
  return copied(parts, dims);
}

}  // namespace onnxgrad
