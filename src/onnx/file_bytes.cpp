#include "onnx/file_bytes.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>

#include "base/memory_budget.h"
#include "onnx/wire.h"

namespace onnxgrad::onnx_io {
namespace {

constexpr std::size_t kSmallest = 4096;  // copies of less need no memory worth mentioning

struct View {
  std::shared_ptr<const void> owner;
  std::string_view view;
};

std::shared_ptr<const std::string_view> make_view(std::shared_ptr<const void> owner,
                                                  std::string_view view) {
  auto made = std::make_shared<const View>(View{.owner = std::move(owner), .view = view});
  return {made, &made->view};
}

}  // namespace

FileBytes::FileBytes(std::shared_ptr<char> memory, std::size_t size)
    : memory_(std::move(memory)), size_(size) {}

FileBytes::FileBytes(std::shared_ptr<const FileBytes> base,
                     std::function<std::string(std::string_view)> write)
    : memory_(base->memory_),
      size_(base->size_),
      base_(std::move(base)),
      write_(std::move(write)) {}

std::shared_ptr<const std::string_view> FileBytes::whole() const {
  if (base_ != nullptr) {
    const auto written = std::make_shared<const std::string>(write_(*base_->whole()));
    return make_view(written, *written);
  }
  if (moves_.empty()) return make_view(memory_, memory());
  const auto copy = base::allocate_aligned(static_cast<std::int64_t>(size_));
  char* bytes = reinterpret_cast<char*>(copy.get());
  std::size_t done = 0;
  for (const Move& move : moves_) {
    const std::size_t shift = move.overwritten.size();
    const std::size_t start = move.offset - shift;
    std::memcpy(bytes + done, memory_.get() + done, start - done);
    // NOLINTNEXTLINE(bugprone-not-null-terminated-result): bytes, no text
    std::memcpy(bytes + start, move.overwritten.data(), shift);
    std::memcpy(bytes + move.offset, memory_.get() + start, move.size);
    done = move.offset + move.size;
  }
  std::memcpy(bytes + done, memory_.get() + done, size_ - done);
  return make_view(copy, {bytes, size_});
}

char* FileBytes::align(std::string_view data, std::size_t alignment) {
  const bool is_inside = std::greater_equal<>()(data.data(), memory_.get()) &&
                         std::less_equal<>()(data.data() + data.size(), memory_.get() + size_);
  if (!is_inside || data.size() < kSmallest) return nullptr;
  const std::size_t shift = reinterpret_cast<std::uintptr_t>(data.data()) % alignment;
  const std::size_t tag_and_length = 1 + WireWriter::encode_varint(data.size()).size();
  if (shift > tag_and_length) return nullptr;
  const auto offset = static_cast<std::size_t>(data.data() - memory_.get());
  char* to = memory_.get() + offset - shift;
  Move move{.offset = offset, .size = data.size(), .overwritten = std::string(to, shift)};
  const auto later = std::ranges::upper_bound(moves_, offset, {}, &Move::offset);
  moves_.insert(later, std::move(move));
  std::memmove(to, data.data(), data.size());
  return to;
}

}  // namespace onnxgrad::onnx_io
