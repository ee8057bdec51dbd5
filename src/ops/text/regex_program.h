#ifndef ONNXGRAD_OPS_TEXT_REGEX_PROGRAM_H_
#define ONNXGRAD_OPS_TEXT_REGEX_PROGRAM_H_

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

// Regular expressions in the syntax of RE2 (https://github.com/google/re2/wiki/Syntax), for the one
// question whether the whole of a text matches. A pattern becomes a program of a nondeterministic
// automaton, which is run on all threads of control at once (Thompson, 1968): a text takes time
// proportional to its length times that of the program, whatever the pattern is.
//
// Texts and patterns are UTF-8. Known are: literals, `.`, classes [a-z] and [^a-z] with \d \w \s \D
// \W \S and [:alpha:] and the like in them, groups (capturing, named or not), `|`, `*`, `+`, `?`,
// {n}, {n,}, {n,m} (greedy or not: that makes no difference here), ^ $ \A \z \b \B, the flags i, m,
// s and U, and the escapes \t \n \r \f \v \a \0 \x7F \x{10FFFF} \Q...\E. Not known are classes of
// Unicode properties (\p, \P) and \C.

namespace onnxgrad::ops {

class RegexProgram {
 public:
  /// Throws: std::invalid_argument (what is wrong with the pattern, and where).
  explicit RegexProgram(std::string_view pattern);

  bool matches(std::string_view text) const;

  struct Range {
    char32_t first = 0;
    char32_t last = 0;
  };
  enum class Op : std::uint8_t { kClass, kSplit, kJump, kAssert, kMatch };
  enum class Assertion : std::uint8_t {
    kLineBegin,
    kLineEnd,
    kTextBegin,
    kTextEnd,
    kWordBoundary,
    kNoWordBoundary
  };
  struct Instruction {
    Op op = Op::kMatch;
    std::int32_t next = 0;   ///< where it goes on
    std::int32_t other = 0;  ///< of kSplit: where it goes on too
    Assertion assertion = Assertion::kTextBegin;
    std::vector<Range> ranges = {};  ///< of kClass: the characters that it takes
  };

 private:
  std::vector<Instruction> program_;
};

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_TEXT_REGEX_PROGRAM_H_
