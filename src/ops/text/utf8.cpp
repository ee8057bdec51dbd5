#include "ops/text/utf8.h"

#include <cstddef>

namespace onnxgrad::ops {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

// Returns the number of bytes after the first one, by its high bits; -1: invalid first byte.
int following_bytes(unsigned char first) {
  if (first < 0x80) return 0;
  if (first >= 0xC2 && first < 0xE0) return 1;
  if (first >= 0xE0 && first < 0xF0) return 2;
  if (first >= 0xF0 && first < 0xF5) return 3;
  return -1;
}

}  // namespace

std::u32string decode_utf8(std::string_view text) {
  constexpr unsigned kFirstMask[] = {0x7F, 0x1F, 0x0F, 0x07};
  constexpr char32_t kLeast[] = {0, 0x80, 0x800, 0x10000};  // smallest character of each length
  std::u32string result;
  result.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i++]);
    const int count = following_bytes(first);
    if (count < 0) {
      result += kReplacement;
      continue;
    }
    char32_t c = first & kFirstMask[count];
    std::size_t end = i;
    int found = 0;
    for (; found < count && end < text.size(); ++found, ++end) {
      const auto next = static_cast<unsigned char>(text[end]);
      if ((next & 0xC0U) != 0x80U) break;
      c = c << 6U | (next & 0x3FU);
    }
    const bool is_whole =
        found == count && c >= kLeast[count] && c <= 0x10FFFF && (c < 0xD800 || c > 0xDFFF);
    result += is_whole ? c : kReplacement;
    if (is_whole) i = end;
  }
  return result;
}

std::string encode_utf8(std::u32string_view text) {
  std::string result;
  result.reserve(text.size());
  const auto byte = [&](char32_t bits) { result += static_cast<char>(bits); };
  for (const char32_t c : text) {
    if (c < 0x80) {
      byte(c);
      continue;
    }
    if (c < 0x800) {
      byte(0xC0U | c >> 6U);
    } else {
      if (c < 0x10000) {
        byte(0xE0U | c >> 12U);
      } else {
        byte(0xF0U | c >> 18U);
        byte(0x80U | (c >> 12U & 0x3FU));
      }
      byte(0x80U | (c >> 6U & 0x3FU));
    }
    byte(0x80U | (c & 0x3FU));
  }
  return result;
}

}  // namespace onnxgrad::ops
