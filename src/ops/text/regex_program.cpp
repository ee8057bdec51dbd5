#include "ops/text/regex_program.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <stdexcept>
#include <string>

#include "ops/text/utf8.h"

namespace onnxgrad::ops {
namespace {

using Range = RegexProgram::Range;
using Op = RegexProgram::Op;
using Assertion = RegexProgram::Assertion;
using Instruction = RegexProgram::Instruction;

constexpr char32_t kLast = 0x10FFFF;
constexpr int kMaxRepeat = 1000;  // RE2's
constexpr std::size_t kMaxProgram = 200'000;
constexpr int kMaxDepth = 200;

struct Named {
  std::string_view name;
  std::array<Range, 4> ranges;  // unused ones are {1, 0}
};
constexpr Range kNone{1, 0};
constexpr std::array<Named, 14> kAsciiClasses{{
    {"alnum", {{{'0', '9'}, {'A', 'Z'}, {'a', 'z'}, kNone}}},
    {"alpha", {{{'A', 'Z'}, {'a', 'z'}, kNone, kNone}}},
    {"ascii", {{{0, 127}, kNone, kNone, kNone}}},
    {"blank", {{{'\t', '\t'}, {' ', ' '}, kNone, kNone}}},
    {"cntrl", {{{0, 31}, {127, 127}, kNone, kNone}}},
    {"digit", {{{'0', '9'}, kNone, kNone, kNone}}},
    {"graph", {{{'!', '~'}, kNone, kNone, kNone}}},
    {"lower", {{{'a', 'z'}, kNone, kNone, kNone}}},
    {"print", {{{' ', '~'}, kNone, kNone, kNone}}},
    {"punct", {{{'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}}}},
    {"space", {{{'\t', '\r'}, {' ', ' '}, kNone, kNone}}},
    {"upper", {{{'A', 'Z'}, kNone, kNone, kNone}}},
    {"word", {{{'0', '9'}, {'A', 'Z'}, {'a', 'z'}, {'_', '_'}}}},
    {"xdigit", {{{'0', '9'}, {'A', 'F'}, {'a', 'f'}, kNone}}},
}};

std::vector<Range> negated(std::vector<Range> ranges) {
  std::ranges::sort(ranges, {}, &Range::first);
  std::vector<Range> result;
  char32_t next = 0;
  for (const Range& range : ranges) {
    if (range.first > next) result.push_back({next, range.first - 1});
    next = std::max<char32_t>(next, range.last + 1);
  }
  if (next <= kLast) result.push_back({next, kLast});
  return result;
}

void append_class(std::vector<Range>& ranges, std::string_view name, bool is_negated) {
  for (const Named& known : kAsciiClasses) {
    if (known.name != name) continue;
    std::vector<Range> own;
    std::ranges::copy_if(known.ranges, std::back_inserter(own),
                         [](const Range& range) { return range.first <= range.last; });
    if (is_negated) own = negated(std::move(own));
    ranges.insert(ranges.end(), own.begin(), own.end());
    return;
  }
  throw std::invalid_argument("unknown class '" + std::string(name) + "'");
}

// \d, \w, \s and their opposites; nullopt for other letters.
std::optional<std::vector<Range>> perl_class(char32_t letter) {
  std::vector<Range> ranges;
  switch (letter) {
    case U'd':
    case U'D':
      append_class(ranges, "digit", letter == U'D');
      return ranges;
    case U'w':
    case U'W':
      append_class(ranges, "word", letter == U'W');
      return ranges;
    case U's':
    case U'S':  // without the vertical tab, as in Perl of old
      ranges = {{'\t', '\n'}, {'\f', '\r'}, {' ', ' '}};
      if (letter == U'S') ranges = negated(std::move(ranges));
      return ranges;
    default:
      return std::nullopt;
  }
}

// Letters of ASCII in both cases.
void fold_case(std::vector<Range>& ranges) {
  const std::size_t given = ranges.size();
  for (std::size_t i = 0; i < given; ++i) {
    for (const auto& [from, shift] : {std::pair{U'A', 32}, std::pair{U'a', -32}}) {
      const char32_t first = std::max<char32_t>(ranges[i].first, from);
      const char32_t last = std::min<char32_t>(ranges[i].last, from + 25);
      if (first <= last) {
        ranges.push_back({static_cast<char32_t>(static_cast<int>(first) + shift),
                          static_cast<char32_t>(static_cast<int>(last) + shift)});
      }
    }
  }
}

// A recursive descent over the pattern that appends to a program. A fragment is a stretch of the
// program that is entered at its start and left at its end; a repeated one is compiled again.
class Compiler {
 public:
  Compiler(std::string_view pattern, std::vector<Instruction>& program)
      : text_(decode_utf8(pattern)), program_(program) {}

  void run() {
    alternatives(0);
    if (at_ < text_.size()) fail("')' without '('");
    program_.push_back({.op = Op::kMatch});
  }

 private:
  struct Flags {
    bool ignores_case = false;
    bool is_multi_line = false;
    bool dot_takes_newline = false;
  };

  [[noreturn]] void fail(const std::string& what) const {
    throw std::invalid_argument(what + " at character " + std::to_string(at_));
  }
  bool is_next(char32_t c) const { return at_ < text_.size() && text_[at_] == c; }
  bool take(char32_t c) {
    if (!is_next(c)) return false;
    ++at_;
    return true;
  }
  std::int32_t place() const { return static_cast<std::int32_t>(program_.size()); }

  void push(Instruction instruction) {
    if (program_.size() >= kMaxProgram) fail("too many repetitions");
    instruction.next += place() + 1;  // relative until here
    program_.push_back(std::move(instruction));
  }
  void push_class(std::vector<Range> ranges) {
    if (flags_.ignores_case) fold_case(ranges);
    push({.op = Op::kClass, .ranges = std::move(ranges)});
  }

  // a|b: split to a and b; a jumps behind b.
  void alternatives(int depth) {
    if (depth > kMaxDepth) fail("groups nested too deeply");
    const Flags outer = flags_;
    std::vector<std::int32_t> jumps;
    while (true) {
      const std::int32_t split = place();
      push({.op = Op::kSplit});
      sequence(depth);
      if (!is_next(U'|')) {
        program_[static_cast<std::size_t>(split)].op = Op::kJump;
        break;
      }
      ++at_;
      jumps.push_back(place());
      push({.op = Op::kJump});
      program_[static_cast<std::size_t>(split)].other = place();
    }
    for (const std::int32_t jump : jumps) program_[static_cast<std::size_t>(jump)].next = place();
    flags_ = outer;
  }

  void sequence(int depth) {
    while (at_ < text_.size() && (is_quoted_ || (!is_next(U'|') && !is_next(U')')))) {
      repeated(depth);
    }
  }

  // An atom with its operator of repetition, which copies its stretch of the program. That is
  // entered at its start and left at its end, so that all its places move alike.
  void repeated(int depth) {
    const std::int32_t first = place();
    if (!atom(depth)) return;
    const auto counts = repetition();
    if (!counts) return;
    const auto [least, most] = *counts;
    const std::vector<Instruction> stretch(program_.begin() + first, program_.end());
    program_.resize(static_cast<std::size_t>(first));
    const auto again = [&] {
      if (program_.size() + stretch.size() > kMaxProgram) fail("too many repetitions");
      const std::int32_t moved = place() - first;
      for (Instruction instruction : stretch) {
        instruction.next += moved;
        instruction.other += moved;
        program_.push_back(std::move(instruction));
      }
    };
    for (int i = 0; i < least; ++i) again();
    if (most < 0) {  // split to the atom, which jumps back, and behind it
      const std::int32_t split = place();
      push({.op = Op::kSplit});
      again();
      push({.op = Op::kJump});
      program_.back().next = split;
      program_[static_cast<std::size_t>(split)].other = place();
      return;
    }
    std::vector<std::int32_t> splits;
    for (int i = least; i < most; ++i) {
      splits.push_back(place());
      push({.op = Op::kSplit});
      again();
    }
    for (const std::int32_t s : splits) program_[static_cast<std::size_t>(s)].other = place();
  }

  // {least, most}, most < 0 being any number; nullopt without an operator. Two operators in a row
  // are an error, but for the `?` that makes one reluctant.
  std::optional<std::pair<int, int>> repetition() {
    if (is_quoted_ && !take_end_of_quote()) return std::nullopt;
    std::optional<std::pair<int, int>> counts;
    if (take(U'*')) {
      counts = {0, -1};
    } else if (take(U'+')) {
      counts = {1, -1};
    } else if (take(U'?')) {
      counts = {0, 1};
    } else if (is_next(U'{')) {
      counts = braces();
    }
    if (!counts) return std::nullopt;
    take(U'?');
    if (is_next(U'*') || is_next(U'+') || is_next(U'?')) fail("a repetition of a repetition");
    return counts;
  }

  // {n}, {n,} or {n,m}; anything else is a literal brace.
  std::optional<std::pair<int, int>> braces() {
    const std::size_t start = at_++;
    const auto number = [&]() -> std::optional<int> {
      std::optional<int> value;
      while (at_ < text_.size() && text_[at_] >= U'0' && text_[at_] <= U'9') {
        value = std::min(value.value_or(0) * 10 + static_cast<int>(text_[at_++] - U'0'), 100'000);
      }
      return value;
    };
    const auto least = number();
    std::optional<int> most = least;
    if (least && take(U',')) most = is_next(U'}') ? -1 : number();
    if (!least || !most || !take(U'}')) {
      at_ = start;
      return std::nullopt;
    }
    if (*least > kMaxRepeat || *most > kMaxRepeat || (*most >= 0 && *most < *least)) {
      fail("a repetition of " + std::to_string(*least) + " to " + std::to_string(*most));
    }
    return std::pair{*least, *most};
  }

  bool take_end_of_quote() {
    if (text_.compare(at_, 2, U"\\E") != 0) return false;
    at_ += 2;
    is_quoted_ = false;
    return true;
  }

  // False for what cannot be repeated and gives no instruction: flags, the ends of quotes.
  bool atom(int depth) {
    if (is_quoted_ && take_end_of_quote()) return false;
    const char32_t c = text_[at_++];
    if (is_quoted_) {
      push_class({{c, c}});
      return true;
    }
    switch (c) {
      case U'(':
        return group(depth);
      case U'[':
        push_class(bracket());
        return true;
      case U'.':
        push({.op = Op::kClass,
              .ranges = flags_.dot_takes_newline ? std::vector<Range>{{0, kLast}}
                                                 : negated({{U'\n', U'\n'}})});
        return true;
      case U'^':
        push_assertion(flags_.is_multi_line ? Assertion::kLineBegin : Assertion::kTextBegin);
        return true;
      case U'$':
        push_assertion(flags_.is_multi_line ? Assertion::kLineEnd : Assertion::kTextEnd);
        return true;
      case U'\\':
        if (take(U'Q')) {
          is_quoted_ = true;
          return false;
        }
        escape();
        return true;
      case U'*':
      case U'+':
      case U'?':
        fail("nothing to repeat");
      default:
        push_class({{c, c}});
        return true;
    }
  }

  void push_assertion(Assertion assertion) { push({.op = Op::kAssert, .assertion = assertion}); }

  // (...), (?:...), (?P<name>...), (?<name>...), (?flags) or (?flags:...).
  bool group(int depth) {
    const Flags outer = flags_;
    bool is_scope = true;
    if (take(U'?')) {
      if (take(U'P') || is_next(U'<')) {
        if (!take(U'<')) fail("an unknown group");
        while (at_ < text_.size() && text_[at_] != U'>') ++at_;
        if (!take(U'>')) fail("a name without end");
      } else {
        is_scope = read_flags();
      }
    }
    if (!is_scope) return false;
    alternatives(depth + 1);
    if (!take(U')')) fail("'(' without ')'");
    flags_ = outer;
    return true;
  }

  // True if a group follows, false if the flags hold from here on.
  bool read_flags() {
    bool is_set = true;
    while (at_ < text_.size()) {
      const char32_t c = text_[at_++];
      if (c == U':') return true;
      if (c == U')') return false;
      if (c == U'-') {
        is_set = false;
      } else if (c == U'i') {
        flags_.ignores_case = is_set;
      } else if (c == U'm') {
        flags_.is_multi_line = is_set;
      } else if (c == U's') {
        flags_.dot_takes_newline = is_set;
      } else if (c != U'U') {  // greedy or not makes no difference
        fail("an unknown flag");
      }
    }
    fail("flags without end");
  }

  void escape() {
    if (at_ >= text_.size()) fail("a backslash at the end");
    const char32_t c = text_[at_];
    if (const auto ranges = perl_class(c)) {
      ++at_;
      return push_class(*ranges);
    }
    ++at_;
    switch (c) {
      case U'A':
        return push_assertion(Assertion::kTextBegin);
      case U'z':
        return push_assertion(Assertion::kTextEnd);
      case U'b':
        return push_assertion(Assertion::kWordBoundary);
      case U'B':
        return push_assertion(Assertion::kNoWordBoundary);
      default: {
        --at_;
        const char32_t literal = escaped_character();
        push_class({{literal, literal}});
      }
    }
  }

  // Behind a backslash: one character.
  char32_t escaped_character() {
    const char32_t c = text_[at_++];
    switch (c) {
      case U't':
        return U'\t';
      case U'n':
        return U'\n';
      case U'r':
        return U'\r';
      case U'f':
        return U'\f';
      case U'v':
        return U'\v';
      case U'a':
        return U'\a';
      case U'0':
        return U'\0';
      case U'x':
        return hexadecimal();
      default:
        if (c < 128 && std::isalnum(static_cast<int>(c)) != 0) fail("an unknown escape");
        return c;
    }
  }

  char32_t hexadecimal() {
    const bool has_braces = take(U'{');
    char32_t value = 0;
    int digits = 0;
    while (at_ < text_.size() && text_[at_] < 128 && digits < (has_braces ? 8 : 2) &&
           std::isxdigit(static_cast<int>(text_[at_])) != 0) {
      const char32_t c = text_[at_++] | 0x20U;
      value = value * 16 + (c >= U'a' ? c - U'a' + 10 : c - 0x20U - 0x10U);
      ++digits;
    }
    const bool is_whole = has_braces ? digits > 0 && take(U'}') : digits == 2;
    if (!is_whole || value > kLast) fail("not a hexadecimal number");
    return value;
  }

  // Behind a '['.
  std::vector<Range> bracket() {
    const bool is_negated = take(U'^');
    std::vector<Range> ranges;
    for (bool is_first = true; is_first || !is_next(U']'); is_first = false) {
      if (at_ >= text_.size()) fail("'[' without ']'");
      if (text_.substr(at_, 2) == U"[:") {
        named_class(ranges);
        continue;
      }
      if (is_next(U'\\') && at_ + 1 < text_.size()) {
        if (const auto perl = perl_class(text_[at_ + 1])) {
          at_ += 2;
          ranges.insert(ranges.end(), perl->begin(), perl->end());
          continue;
        }
      }
      const char32_t first = class_character();
      char32_t last = first;
      if (is_next(U'-') && at_ + 1 < text_.size() && text_[at_ + 1] != U']') {
        ++at_;
        last = class_character();
      }
      if (last < first) fail("a range from the larger to the smaller");
      ranges.push_back({first, last});
    }
    ++at_;
    if (flags_.ignores_case) fold_case(ranges);
    return is_negated ? negated(std::move(ranges)) : ranges;
  }

  char32_t class_character() {
    if (at_ >= text_.size()) fail("'[' without ']'");
    if (!take(U'\\')) return text_[at_++];
    if (at_ >= text_.size()) fail("a backslash at the end");
    return escaped_character();
  }

  // [:alpha:] or [:^alpha:]
  void named_class(std::vector<Range>& ranges) {
    const std::size_t end = text_.find(U":]", at_ + 2);
    if (end == std::u32string::npos) fail("'[:' without ':]'");
    std::string name;
    for (std::size_t i = at_ + 2; i < end; ++i) name += static_cast<char>(text_[i]);
    const bool is_negated = name.starts_with('^');
    append_class(ranges, std::string_view(name).substr(is_negated ? 1 : 0), is_negated);
    at_ = end + 2;
  }

  std::u32string text_;
  std::vector<Instruction>& program_;
  std::size_t at_ = 0;
  Flags flags_;
  bool is_quoted_ = false;  // between \\Q and \\E
};

bool is_word(char32_t c) {
  return c < 128 && (std::isalnum(static_cast<int>(c)) != 0 || c == U'_');
}

// What an assertion is asked of: a place between two characters.
bool holds(Assertion assertion, const std::u32string& text, std::size_t at) {
  const bool is_begin = at == 0;
  const bool is_end = at == text.size();
  const auto boundary = [&] {
    return (!is_begin && is_word(text[at - 1])) != (!is_end && is_word(text[at]));
  };
  switch (assertion) {
    case Assertion::kTextBegin:
      return is_begin;
    case Assertion::kTextEnd:
      return is_end;
    case Assertion::kLineBegin:
      return is_begin || text[at - 1] == U'\n';
    case Assertion::kLineEnd:
      return is_end || text[at] == U'\n';
    case Assertion::kWordBoundary:
      return boundary();
    case Assertion::kNoWordBoundary:
      return !boundary();
  }
  return false;
}

// Places in the program where a thread of control waits for a character, each once.
class Threads {
 public:
  explicit Threads(std::size_t size) : is_in_(size, false) {}
  void clear() {
    for (const std::int32_t place : waiting) is_in_[static_cast<std::size_t>(place)] = false;
    for (const std::int32_t place : passed_) is_in_[static_cast<std::size_t>(place)] = false;
    waiting.clear();
    passed_.clear();
    has_match = false;
  }
  // Follows jumps from `start`, at a place in the text.
  void add(const std::vector<Instruction>& program, std::int32_t start, const std::u32string& text,
           std::size_t at) {
    stack_.push_back(start);
    while (!stack_.empty()) {
      const std::int32_t place = stack_.back();
      stack_.pop_back();
      if (is_in_[static_cast<std::size_t>(place)]) continue;
      is_in_[static_cast<std::size_t>(place)] = true;
      const Instruction& instruction = program[static_cast<std::size_t>(place)];
      if (instruction.op == Op::kClass) {
        waiting.push_back(place);
        continue;
      }
      passed_.push_back(place);
      if (instruction.op == Op::kMatch) {
        has_match = true;
      } else if (instruction.op != Op::kAssert || holds(instruction.assertion, text, at)) {
        stack_.push_back(instruction.next);
        if (instruction.op == Op::kSplit) stack_.push_back(instruction.other);
      }
    }
  }

  std::vector<std::int32_t> waiting;
  bool has_match = false;

 private:
  std::vector<bool> is_in_;
  std::vector<std::int32_t> passed_;
  std::vector<std::int32_t> stack_;
};

}  // namespace

RegexProgram::RegexProgram(std::string_view pattern) { Compiler(pattern, program_).run(); }

bool RegexProgram::matches(std::string_view given) const {
  const std::u32string text = decode_utf8(given);
  Threads now(program_.size());
  Threads then(program_.size());
  now.add(program_, 0, text, 0);
  for (std::size_t at = 0; at < text.size() && !now.waiting.empty(); ++at) {
    then.clear();
    for (const std::int32_t place : now.waiting) {
      const Instruction& instruction = program_[static_cast<std::size_t>(place)];
      const bool takes = std::ranges::any_of(instruction.ranges, [&](const Range& range) {
        return range.first <= text[at] && text[at] <= range.last;
      });
      if (takes) then.add(program_, instruction.next, text, at + 1);
    }
    std::swap(now, then);
    if (at + 1 == text.size()) return now.has_match;
  }
  return text.empty() && now.has_match;
}

}  // namespace onnxgrad::ops
