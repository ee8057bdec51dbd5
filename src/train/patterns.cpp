#include "train/patterns.h"

#include "base/check.h"

namespace onnxgrad::train {

bool glob_match(std::string_view pattern, std::string_view name) {
  std::size_t p = 0;
  std::size_t n = 0;
  std::size_t star = std::string_view::npos;  // the last * seen, and what it has matched so far
  std::size_t taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::vector<bool> match_patterns(std::span<const std::string> patterns,
                                 std::span<const std::string> names, std::string_view what) {
  std::vector<bool> matched(names.size(), false);
  for (const std::string& pattern : patterns) {
    bool any = false;
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (!glob_match(pattern, names[i])) continue;
      matched[i] = true;
      any = true;
    }
    if (!any) {
      throw ModelError(
          {.what = "no " + std::string(what) + " matches '" + pattern + "'",
           .detail =
               names.empty() ? "There are none." : "There are " + base::quote_list(names) + ".",
           .hint = base::nearest_or(pattern, names, "Name one, or give a pattern such as 'fc*'.")});
    }
  }
  return matched;
}

}  // namespace onnxgrad::train
