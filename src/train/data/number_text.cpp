#include "train/data/number_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "onnxgrad/data_files.h"

namespace onnxgrad::train {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string without(std::string_view text, char left_out) {
  std::string result(text);
  std::erase(result, left_out);
  return result;
}

bool is_number(std::string_view text) {
  double number = 0;
  return !text.empty() && parse_number(text, number);
}

// True for text that means "missing" in the files of other programs.
bool is_missing_mark(std::string_view text) {
  constexpr std::array<std::string_view, 13> kMarks = {
      "na", "n/a", "#n/a", "<na>", "null", "none", "nil", "-", "--", "?", ".", "missing", "nat"};
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return std::ranges::find(kMarks, lower) != kMarks.end();
}

// 2024-01-05, 5.1.2024, 01/05/24, with or without a time of day.
bool is_date(std::string_view text) {
  constexpr std::string_view kMarks = "-/.";
  std::size_t parts = 1;
  char mark = 0;
  bool after_digit = false;
  for (const char c : text) {
    if (is_digit(c)) {
      after_digit = true;
    } else if (after_digit && kMarks.find(c) != std::string_view::npos &&
               (mark == 0 || mark == c)) {
      mark = c;
      ++parts;
      after_digit = false;
    } else {
      return parts == 3 && after_digit && (c == ' ' || c == 'T');
    }
  }
  return parts == 3 && after_digit;
}

// "1,234.5", "1,234,567": groups of three digits after the first comma.
bool has_groups_of_three(std::string_view text) {
  text = text.substr(0, text.find('.'));
  std::size_t digits = 0;
  bool is_first = true;
  for (std::size_t i = text.size(); i-- > 0;) {
    if (is_digit(text[i])) {
      ++digits;
    } else if (text[i] == ',' && digits == 3) {
      digits = 0;
      is_first = false;
    } else {
      return !is_first && i == 0 && digits > 0 && (text[i] == '-' || text[i] == '+');
    }
  }
  return !is_first && digits > 0 && digits <= 3;
}

std::string comma_hint(std::string_view text) {
  std::string point(text);
  const auto commas = std::ranges::count(text, ',');
  std::ranges::replace(point, ',', '.');
  const std::string plain = without(text, ',');
  const bool is_decimal = commas == 1 && is_number(point);
  const bool is_grouped = has_groups_of_three(text) && is_number(plain);
  if (is_decimal && is_grouped) {
    return fmt::format("Write {} or {}: numbers have a decimal point, and no thousands separators.",
                       point, plain);
  }
  if (is_decimal) return fmt::format("Write it with a decimal point: {}.", point);
  if (is_grouped) return fmt::format("Write it without thousands separators: {}.", plain);
  return "";
}

}  // namespace

bool parse_number(std::string_view text, double& number) {
  if (text.empty()) {
    number = std::numeric_limits<double>::quiet_NaN();
    return true;
  }
  if (text.front() == '+' && text.size() > 1 && text[1] != '-') text.remove_prefix(1);
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (stop != end) return false;
  if (error == std::errc::result_out_of_range) {  // infinity or 0, as strtod returns
    const std::size_t exponent = text.find_last_of("eE");
    const bool is_small = exponent != std::string_view::npos && text[exponent + 1] == '-';
    number = is_small ? 0.0 : HUGE_VAL;
    if (text.front() == '-') number = -number;
    return true;
  }
  return error == std::errc{};
}

bool parse_number_or_truth(std::string_view text, double& number) {
  const bool is_true = text == "True" || text == "true" || text == "TRUE";
  if (!is_true && text != "False" && text != "false" && text != "FALSE") {
    return parse_number(text, number);
  }
  number = is_true ? 1 : 0;
  return true;
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kShown = 60;
  std::string result = "'";
  for (const char c : text.substr(0, kShown)) {
    const auto code = static_cast<unsigned char>(c);
    code < 0x20 ? result += fmt::format("\\x{:02x}", code) : result += c;
  }
  return result + (text.size() > kShown ? "...'" : "'");
}

}  // namespace onnxgrad::train

namespace onnxgrad {

std::string number_hint(const std::string& text, const std::string& column) {
  constexpr std::array<std::string_view, 5> kCurrencies = {"$", "\u20ac", "\u00a3", "\u00a5",
                                                           "\u20b9"};
  using train::is_number;
  const std::string_view view = text;
  if (const std::string hint = train::comma_hint(view); !hint.empty()) return hint;
  if (view.ends_with('%')) return "Write it without the percent sign.";
  for (const std::string_view sign : kCurrencies) {
    if (view.starts_with(sign) || view.ends_with(sign)) {
      return "Write it without the currency sign.";
    }
  }
  if (is_number(train::without(view, ' '))) return "Write it without spaces between the digits.";
  if (is_number(train::without(view, '\''))) return "Write it without thousands separators.";
  if (train::is_missing_mark(view)) return "Fill such cells with numbers, or remove their rows.";
  const std::string leave_out =
      column.empty() ? "." : fmt::format(", or leave the column out: ignored='{}'.", column);
  if (train::is_date(view)) {
    return "Replace dates by numbers, such as the days since the first one" + leave_out;
  }
  if (column.empty()) return "Replace it by a number, or remove such rows.";
  return "Export the encoding of strings with the model (a scikit-learn pipeline)" + leave_out;
}

}  // namespace onnxgrad
