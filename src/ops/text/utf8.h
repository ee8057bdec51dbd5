#ifndef ONNXGRAD_OPS_TEXT_UTF8_H_
#define ONNXGRAD_OPS_TEXT_UTF8_H_

#include <string>
#include <string_view>

namespace onnxgrad::ops {

/// Decodes UTF-8; each byte that is not part of a character becomes U+FFFD.
std::u32string decode_utf8(std::string_view text);
/// Encodes characters as UTF-8.
std::string encode_utf8(std::u32string_view text);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_TEXT_UTF8_H_
