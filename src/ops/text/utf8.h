#ifndef ONNXGRAD_OPS_TEXT_UTF8_H_
#define ONNXGRAD_OPS_TEXT_UTF8_H_

#include <string>
#include <string_view>

namespace onnxgrad::ops {

/// The characters of a text in UTF-8; a byte that is not part of one is U+FFFD.
std::u32string decode_utf8(std::string_view text);
/// The opposite.
std::string encode_utf8(std::u32string_view text);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_TEXT_UTF8_H_
