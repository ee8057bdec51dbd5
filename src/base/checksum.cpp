#include "base/checksum.h"

#define XXH_INLINE_ALL  // header only: no library to link, no symbol to clash with another
                        // copy
#include <xxhash.h>

namespace onnxgrad::base {
namespace {

std::string canonical_hex(XXH128_hash_t hash) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  std::string text;
  text.reserve(2 * sizeof canonical.digest);
  for (const unsigned char byte : canonical.digest) {
    text += kDigits[byte >> 4U];
    text += kDigits[byte & 15U];
  }
  return text;
}

}  // namespace

struct Checksum::State {
  XXH3_state_t xxh3;  // declares 64-byte alignment itself
};

Checksum::Checksum() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh3); }
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;
Checksum::~Checksum() = default;

void Checksum::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->xxh3, bytes.data(), bytes.size());
}

std::string Checksum::hex() const { return canonical_hex(XXH3_128bits_digest(&state_->xxh3)); }

std::uint64_t hash64(std::span<const std::byte> bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

std::string checksum_hex(std::span<const std::byte> bytes) {
  return canonical_hex(XXH3_128bits(bytes.data(), bytes.size()));
}

std::string checksum_hex(std::string_view text) {
  return checksum_hex(std::as_bytes(std::span(text)));
}

}  // namespace onnxgrad::base
