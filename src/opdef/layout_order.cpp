#include "opdef/layout_order.h"

#include <charconv>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/rounding.h"

namespace onnxgrad::opdef {
namespace {

using Kind = Layout::Kind;

constexpr std::string_view kBlockedPrefix = "blocked_";

}  // namespace

Dims stored_dims(const Dims& dims, Layout layout) {
  if (layout.is_plain() || dims.rank() < 2) return dims;
  const auto all = dims.values();
  const std::int64_t block = layout.kind == Kind::kBlocked ? layout.block : dims[1];
  ONNXGRAD_ASSERT(layout.kind != Kind::kBlocked || block > 0);
  std::vector<std::int64_t> stored{dims[0]};
  if (layout.kind == Kind::kBlocked) stored.push_back(base::ceil_div(dims[1], block));
  stored.insert(stored.end(), all.begin() + 2, all.end());
  stored.push_back(block);
  return Dims(std::move(stored));
}

std::int64_t stored_bytes(const Dims& dims, DataType dtype, Layout layout) {
  return layout.is_plain() ? dims.size_bytes(dtype) : stored_dims(dims, layout).size_bytes(dtype);
}

Layout simplest(Layout layout, const Dims& dims) {
  if (layout.is_plain() || dims.rank() < 2 || dims.num_elements() == 0) return {};
  const std::int64_t channels = dims[1];
  const bool has_space = dims.product(2, dims.rank()) > 1;
  if (layout.kind == Kind::kBlocked) {
    const std::int64_t block = layout.block;
    if (block == 1 || (!has_space && channels % block == 0)) return {};
    if (channels != block) return layout;
    layout = {.kind = Kind::kChannelsLast};
  }
  return has_space && channels > 1 ? layout : Layout{};
}

std::int64_t stored_offset(std::int64_t index, const Dims& dims, Layout layout) {
  if (layout.is_plain() || dims.rank() < 2) return index;
  const std::int64_t channels = dims[1];
  const std::int64_t space = dims.product(2, dims.rank());
  const std::int64_t p = index % space;
  const std::int64_t c = index / space % channels;
  const std::int64_t n = index / space / channels;
  if (layout.kind == Kind::kChannelsLast) return (n * space + p) * channels + c;
  const std::int64_t block = layout.block;
  return ((n * base::ceil_div(channels, block) + c / block) * space + p) * block + c % block;
}

std::string to_string(Layout layout) {
  switch (layout.kind) {
    case Kind::kPlain:
      return "plain";
    case Kind::kChannelsLast:
      return "channels_last";
    case Kind::kBlocked:
      break;
  }
  return std::string(kBlockedPrefix) + std::to_string(layout.block);
}

std::optional<Layout> layout_named(std::string_view name) {
  if (name == "plain") return Layout{};
  if (name == "channels_last") return Layout{.kind = Kind::kChannelsLast};
  if (!name.starts_with(kBlockedPrefix)) return std::nullopt;
  name.remove_prefix(kBlockedPrefix.size());
  std::uint8_t block = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), block);
  if (error != std::errc() || end != name.data() + name.size() || block == 0) return std::nullopt;
  return Layout{.kind = Kind::kBlocked, .block = block};
}

}  // namespace onnxgrad::opdef
