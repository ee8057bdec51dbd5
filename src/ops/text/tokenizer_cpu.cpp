#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "onnxgrad/error.h"
#include "opdef/kernel.h"
#include "ops/kernel_support.h"

// com.microsoft.Tokenizer. With separators, the first of these regular expressions splits the
// string, the next one each part, and so on; one empty separator splits it into its characters.
// Otherwise the tokens are the longest matches of `tokenexp`, from left to right. Tokens with fewer
// than `mincharnum` characters are dropped.

namespace onnxgrad::ops::tokenizer_cpu {
namespace {

using Regexes = std::vector<std::unique_ptr<re2::RE2>>;
using Tokens = std::vector<std::string_view>;

constexpr std::string_view kStartOfText = "\x02";
constexpr std::string_view kEndOfText = "\x03";

Place place_of(const DynamicCall& call) {
  return {.node = call.node.name, .op_type = call.node.op_type};
}

std::unique_ptr<re2::RE2> compile(const DynamicCall& call, const std::string& pattern) {
  re2::RE2::Options options(re2::RE2::Quiet);
  options.set_longest_match(true);
  auto regex = std::make_unique<re2::RE2>(pattern, options);
  if (regex->ok()) return regex;
  throw ModelError({.what = fmt::format("pattern '{}': {}", pattern, regex->error()),
                    .where = place_of(call),
                    .hint = "Write the pattern in the syntax of RE2."});
}

// Returns the byte after the UTF-8 character that starts at `at`.
std::size_t next_character(std::string_view text, std::size_t at) {
  const auto continues = [&](std::size_t i) {
    return i < text.size() && (static_cast<unsigned char>(text[i]) & 0xC0U) == 0x80U;
  };
  for (++at; continues(at);) ++at;
  return at;
}

std::int64_t count_characters(std::string_view text) {
  return std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
}

/// Match in a string: bytes [begin, end), and the position where the search continues.
struct Match {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t next = 0;
};

// Calls f(match) for each match, from left to right. After a match with fewer than `least`
// characters (at least 1) the search continues at the second character of the match.
template <class F>
void visit_matches(const re2::RE2& regex, std::string_view text, std::int64_t least, F&& f) {
  re2::StringPiece found;
  const re2::StringPiece piece(text.data(), text.size());
  for (std::size_t at = 0; at <= text.size();) {
    if (!regex.Match(piece, at, text.size(), re2::RE2::UNANCHORED, &found, 1)) return;
    const auto begin = static_cast<std::size_t>(found.data() - piece.data());
    const std::size_t end = begin + found.size();
    const bool is_short = count_characters(text.substr(begin, end - begin)) < least;
    at = is_short ? next_character(text, begin) : end;
    f(Match{.begin = begin, .end = end, .next = std::min(at, text.size())});
  }
}

// Appends the substrings between the matches.
void split(const re2::RE2& separator, std::string_view text, Tokens& parts) {
  std::size_t start = 0;
  const auto add = [&](std::size_t end) {
    if (end > start) parts.push_back(text.substr(start, end - start));
  };
  visit_matches(separator, text, 1, [&](const Match& match) {
    add(match.begin);
    start = match.next;
  });
  add(text.size());
}

Tokens characters_of(std::string_view text) {
  Tokens tokens;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = next_character(text, at);
    tokens.push_back(text.substr(at, end - at));
    at = end;
  }
  return tokens;
}

using Splitter = std::function<Tokens(std::string_view)>;

Splitter splitter_of(const DynamicCall& call, std::int64_t least) {
  const ir::AttributeValue* given = call.node.find_attribute("separators");
  const std::string expression = call.node.string_attribute("tokenexp", "");
  auto regexes = std::make_shared<Regexes>();
  if (given == nullptr) {
    if (expression.empty()) {
      throw ModelError({.what = "neither separators nor tokenexp says where tokens end",
                        .where = place_of(call),
                        .hint = "Give one of the two attributes."});
    }
    regexes->push_back(compile(call, expression));
    return [regexes, least](std::string_view text) {
      Tokens tokens;
      visit_matches(*regexes->front(), text, least, [&](const Match& match) {
        tokens.push_back(text.substr(match.begin, match.end - match.begin));
      });
      return tokens;
    };
  }
  const auto& separators = std::get<std::vector<std::string>>(*given);
  if (separators.size() == 1 && separators.front().empty()) {
    if (least > 1) {
      throw ModelError({.what = fmt::format("mincharnum = {} for single characters", least),
                        .where = place_of(call),
                        .hint = "Set mincharnum to 1, or give a separator."});
    }
    return characters_of;
  }
  for (const std::string& separator : separators) regexes->push_back(compile(call, separator));
  return [regexes](std::string_view text) {
    Tokens parts = {text};
    for (const auto& regex : *regexes) {
      Tokens smaller;
      for (const std::string_view part : parts) split(*regex, part, smaller);
      parts = std::move(smaller);
    }
    return parts;
  };
}

// y [..., D]: the tokens of each string, then `pad_value`. D is the largest number of tokens, plus
// 2 with `mark`; 0 if no string has any.
std::vector<Tensor> run_tokenizer(const DynamicCall& call) {
  const Tensor& x = call.inputs.at(0);
  const bool has_marks = call.node.int_attribute("mark") != 0;
  const std::int64_t least = call.node.int_attribute("mincharnum");
  const std::string pad = call.node.string_attribute("pad_value");
  const Splitter split_text = splitter_of(call, least);
  std::vector<Tokens> rows;
  std::size_t longest = 0;
  for (const std::string& text : x.strings()) {
    Tokens tokens = split_text(text);
    std::erase_if(tokens, [&](std::string_view t) { return count_characters(t) < least; });
    longest = std::max(longest, tokens.size());
    rows.push_back(std::move(tokens));
  }
  const std::size_t width = longest == 0 ? 0 : longest + (has_marks ? 2 : 0);
  std::vector<std::string> texts;
  texts.reserve(rows.size() * width);
  for (std::size_t i = 0; i < rows.size() && width > 0; ++i) {
    if (has_marks) texts.emplace_back(kStartOfText);
    for (const std::string_view token : rows[i]) texts.emplace_back(token);
    if (has_marks) texts.emplace_back(kEndOfText);
    texts.resize((i + 1) * width, pad);
  }
  std::vector<std::int64_t> dims(x.dims().begin(), x.dims().end());
  dims.push_back(static_cast<std::int64_t>(width));
  return {Tensor::from_strings(std::move(texts), Dims(dims))};
}

}  // namespace

void register_tokenizer_cpu(opdef::KernelRegistry& registry) {
  registry.add_dynamic("com.microsoft", "Tokenizer", run_tokenizer);
}

}  // namespace onnxgrad::ops::tokenizer_cpu
