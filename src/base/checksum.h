#ifndef ONNXGRAD_BASE_CHECKSUM_H_
#define ONNXGRAD_BASE_CHECKSUM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace onnxgrad::base {

/// 128-bit XXH3 over bytes that arrive in pieces. It detects accidents (a flipped bit, a
/// lost page); it is no defence against a deliberately crafted file.
class Checksum {
 public:
  Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;
  ~Checksum();

  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text))); }
  /// 32 hexadecimal digits in the order of xxHash's canonical form, as `xxhsum -H2` prints them.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// 64-bit XXH3 of a few bytes, with a seed.
std::uint64_t hash64(std::span<const std::byte> bytes, std::uint64_t seed);

/// Checksum of bytes that are all in memory, as hexadecimal digits.
std::string checksum_hex(std::span<const std::byte> bytes);
std::string checksum_hex(std::string_view text);

}  // namespace onnxgrad::base

#endif  // ONNXGRAD_BASE_CHECKSUM_H_
