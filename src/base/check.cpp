#include "base/check.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace onnxgrad::base {

void assertion_failed(const char* condition, const char* file, int line) {
  const char* slash = std::strrchr(file, '/');
  throw InternalError(std::string(condition) + " does not hold at " + (slash ? slash + 1 : file) +
                      ":" + std::to_string(line));
}

namespace {

// Levenshtein distance in one row of memory.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string nearest_or(std::string_view wrong, std::span<const std::string> candidates,
                       std::string otherwise) {
  constexpr std::size_t kMaxLength = 200;  // names in malicious files can be long
  if (wrong.size() > kMaxLength) return otherwise;
  const std::string* best = nullptr;
  // Two changes may leave one letter of three: "age" is no "a", but "sdg" may be "sgd".
  const bool is_short = wrong.size() <= 3;
  std::size_t best_distance = std::max<std::size_t>(2, wrong.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > kMaxLength) continue;
    const std::size_t distance = edit_distance(wrong, candidate);
    if (is_short && distance > 1 && candidate.size() != wrong.size()) continue;
    if (distance < best_distance) {
      best = &candidate;
      best_distance = distance;
    }
  }
  return best == nullptr ? otherwise : "Did you mean '" + *best + "'?";
}

namespace {

std::string escaped(std::string_view text, bool keeps_lines) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string result;
  result.reserve(text.size());
  const auto add_byte = [&](unsigned char byte) {
    result += "\\x";
    result += kDigits[byte >> 4];
    result += kDigits[byte & 0xFU];
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : '\0');
    if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {  // U+0080 to U+009F in UTF-8
      add_byte(next);
      ++i;
    } else if (byte == '\n' && !keeps_lines) {
      result += "\\n";
    } else if ((byte < 0x20 && byte != '\n') || byte == 0x7F) {
      add_byte(byte);
    } else {
      result += text[i];
    }
  }
  return result;
}

}  // namespace

std::string printable(std::string_view text) { return escaped(text, false); }

std::string printable_lines(std::string_view text) { return escaped(text, true); }

std::string quote_list(std::span<const std::string> names, std::size_t limit) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), limit); ++i) {
    if (i > 0) text += ", ";
    text += "'" + printable(names[i]) + "'";
  }
  if (names.size() > limit) text += ", ... (" + std::to_string(names.size()) + " in total)";
  return text;
}

}  // namespace onnxgrad::base
