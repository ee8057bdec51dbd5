#ifndef ONNXGRAD_BASE_CHECK_H_
#define ONNXGRAD_BASE_CHECK_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "onnxgrad/error.h"

namespace onnxgrad::base {

/// Throws InternalError; `condition` is the text of the condition that failed.
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);

/// Advice about an unknown name: "Did you mean 'x'?" for the nearest candidate, or
/// `otherwise` if none is near.
std::string nearest_or(std::string_view wrong, std::span<const std::string> candidates,
                       std::string otherwise = "Use one of these names.");

/// `text` with control characters as escape sequences ("\n", "\x1b"), so that a name from a file
/// can neither break a line nor control a terminal. Backslashes are kept, so that printing twice
/// changes nothing.
std::string printable(std::string_view text);
/// Makes text of several lines printable: line breaks are kept.
std::string printable_lines(std::string_view text);

/// Text of a list: "'a', 'b', 'c'" with at most `limit` names, then ", ... (12 in total)".
std::string quote_list(std::span<const std::string> names, std::size_t limit = 8);

}  // namespace onnxgrad::base

/// Checks an invariant of our own; user errors throw one of the other classes.
#define ONNXGRAD_ASSERT(condition) \
  ((condition) ? void() : ::onnxgrad::base::assertion_failed(#condition, __FILE__, __LINE__))

#endif  // ONNXGRAD_BASE_CHECK_H_
