#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "onnxgrad/error.h"
#include "opdef/kernel.h"
#include "ops/kernel_support.h"

// The pool is a trie: an n-gram is a path of n words from its root. Words have integer ids; words
// that are not in the pool end every path.

namespace onnxgrad::ops::tfidf_cpu {
namespace {

[[noreturn]] void refuse(const ir::Node& node, const std::string& what) {
  throw ModelError({.what = what,
                    .where = {.node = node.name, .op_type = node.op_type},
                    .hint = "Export the vectorizer again: ngram_counts has the index in the pool "
                            "where n-grams of each length start."});
}

class Pool {
 public:
  template <class Word>
  void build(const ir::Node& node, const std::vector<Word>& words,
             std::unordered_map<Word, std::int64_t>& numbers);

  /// Returns the node reached from `place` by a word, or -1.
  std::int64_t follow(std::int64_t place, std::int64_t word) const {
    const auto found = ways_.find({place, word});
    return found == ways_.end() ? -1 : found->second;
  }
  /// Returns the n-gram that ends at `place`, or -1.
  std::int64_t gram(std::int64_t place) const { return grams_[static_cast<std::size_t>(place)]; }

 private:
  struct Hash {
    std::size_t operator()(const std::pair<std::int64_t, std::int64_t>& way) const {
      const auto mixed = static_cast<std::uint64_t>(way.first) * 0x9E3779B97F4A7C15ULL;
      return mixed ^ (static_cast<std::uint64_t>(way.second) + (mixed >> 29U));
    }
  };
  std::unordered_map<std::pair<std::int64_t, std::int64_t>, std::int64_t, Hash> ways_;
  std::vector<std::int64_t> grams_{-1};
};

template <class Word>
void Pool::build(const ir::Node& node, const std::vector<Word>& words,
                 std::unordered_map<Word, std::int64_t>& numbers) {
  const std::vector<std::int64_t> starts = node.ints_attribute("ngram_counts");
  const auto size = static_cast<std::int64_t>(words.size());
  std::int64_t gram = 0;
  for (std::size_t n = 1; n <= starts.size(); ++n) {
    const std::int64_t first = starts[n - 1];
    const std::int64_t end = n < starts.size() ? starts[n] : size;
    if (first < 0 || end < first || end > size ||
        (end - first) % static_cast<std::int64_t>(n) != 0) {
      refuse(node, "ngram_counts from " + std::to_string(first) + " to " + std::to_string(end) +
                       " in a pool of " + std::to_string(size));
    }
    for (std::int64_t at = first; at < end;) {
      std::int64_t place = 0;
      for (std::size_t k = 0; k < n; ++k, ++at) {
        const Word& word = words[static_cast<std::size_t>(at)];
        const auto number =
            numbers.emplace(word, static_cast<std::int64_t>(numbers.size())).first->second;
        const auto [way, is_new] =
            ways_.emplace(std::pair{place, number}, static_cast<std::int64_t>(grams_.size()));
        if (is_new) grams_.push_back(-1);
        place = way->second;
      }
      grams_[static_cast<std::size_t>(place)] = gram++;
    }
  }
  if (gram != static_cast<std::int64_t>(node.ints_attribute("ngram_indexes").size())) {
    refuse(node, std::to_string(node.ints_attribute("ngram_indexes").size()) +
                     " ngram_indexes for a pool of " + std::to_string(gram) + " n-grams");
  }
}

template <class List>
List list_attribute(const ir::Node& node, std::string_view name) {
  const ir::AttributeValue* value = node.find_attribute(name);
  return value == nullptr ? List{} : std::get<List>(*value);
}

struct Vectorizer {
  std::int64_t min_length = 1;
  std::int64_t max_length = 1;
  std::int64_t max_skip = 0;
  std::string mode;
  std::vector<std::int64_t> indexes;
  std::vector<float> weights;  // empty: all are 1

  // Adds the n-grams of `words` to `counts`; their words are skip + 1 apart.
  void count(const Pool& pool, const std::vector<std::int64_t>& words, float* counts) const {
    const auto size = static_cast<std::int64_t>(words.size());
    for (std::int64_t distance = 1; distance <= std::min(max_skip + 1, size); ++distance) {
      for (std::int64_t start = 0; start < size; ++start) {
        std::int64_t place = 0;
        for (std::int64_t n = 1; n <= max_length; ++n) {
          const std::int64_t at = start + (n - 1) * distance;
          if (at >= size) break;
          place = pool.follow(place, words[static_cast<std::size_t>(at)]);
          if (place < 0) break;
          // Unigrams are counted for one distance only.
          if (n < min_length || (n == 1 && distance > 1)) continue;
          const std::int64_t gram = pool.gram(place);
          if (gram >= 0) counts[indexes[static_cast<std::size_t>(gram)]] += 1;
        }
      }
    }
  }

  // Replaces counts by 0 or 1, by weights, or by counts times weights.
  void weigh(float* counts) const {
    if (mode == "TF") return;
    for (std::size_t gram = 0; gram < indexes.size(); ++gram) {
      float& count = counts[indexes[gram]];
      const float weight = weights.empty() ? 1.0F : weights[gram];
      if (mode == "TFIDF")
        count *= weight;
      else if (count > 0)
        count = weight;
    }
  }
};

Vectorizer read(const ir::Node& node) {
  Vectorizer v{.min_length = node.int_attribute("min_gram_length"),
               .max_length = node.int_attribute("max_gram_length"),
               .max_skip = node.int_attribute("max_skip_count"),
               .mode = node.string_attribute("mode"),
               .indexes = node.ints_attribute("ngram_indexes"),
               .weights = {}};
  v.weights = list_attribute<std::vector<float>>(node, "weights");
  if (!v.weights.empty() && v.weights.size() != v.indexes.size()) {
    refuse(node, std::to_string(v.weights.size()) + " weights for " +
                     std::to_string(v.indexes.size()) + " n-grams");
  }
  const auto longest = std::ssize(node.ints_attribute("ngram_counts"));
  if (v.min_length > v.max_length || v.max_length > longest) {
    refuse(node, "n-grams of " + std::to_string(v.min_length) + " to " +
                     std::to_string(v.max_length) +
                     " words, of which ngram_counts has those of 1 to " + std::to_string(longest));
  }
  return v;
}

template <class Word, class Words>
Tensor vectorize(const DynamicCall& call, const std::vector<Word>& pool_words, const Words& words) {
  const Vectorizer v = read(call.node);
  std::unordered_map<Word, std::int64_t> numbers;
  Pool pool;
  pool.build(call.node, pool_words, numbers);
  const Dims& dims = call.inputs.at(0).dims();
  const std::int64_t rows = dims.rank() == 2 ? dims[0] : 1;
  const std::int64_t columns = dims.rank() == 0 ? 1 : dims[dims.rank() - 1];
  const std::int64_t width =
      v.indexes.empty() ? 0 : *std::max_element(v.indexes.begin(), v.indexes.end()) + 1;
  Tensor y = Tensor::zeros(DataType::kFloat32, dims.rank() == 2 ? Dims{rows, width} : Dims{width});
  float* counts = y.mutable_data<float>().data();
  if (rows == 0) return y;  // any number of columns
  std::vector<std::int64_t> row(static_cast<std::size_t>(columns));
  for (std::int64_t r = 0; r < rows; ++r, counts += width) {
    for (std::int64_t c = 0; c < columns; ++c) {
      const auto found = numbers.find(words[static_cast<std::size_t>(r * columns + c)]);
      row[static_cast<std::size_t>(c)] = found == numbers.end() ? -1 : found->second;
    }
    v.count(pool, row, counts);
    v.weigh(counts);
  }
  return y;
}

std::vector<Tensor> run_tfidf(const DynamicCall& call) {
  const Tensor& x = call.inputs.at(0);
  if (x.dims().rank() > 2) {
    throw ShapeError({.what = "an input of shape " + x.dims().to_string() +
                              ", expected [C] or "
                              "[N, C]",
                      .where = {.node = call.node.name, .op_type = call.node.op_type},
                      .hint = "Give one row of words for each string."});
  }
  const bool has_strings = call.node.find_attribute("pool_strings") != nullptr;
  if (has_strings != (x.dtype() == DataType::kString) ||
      has_strings == (call.node.find_attribute("pool_int64s") != nullptr)) {
    refuse(call.node,
           "the pool is not of the type of the input, " + std::string(dtype_name(x.dtype())));
  }
  if (has_strings) {
    return {vectorize(call, list_attribute<std::vector<std::string>>(call.node, "pool_strings"),
                      x.strings())};
  }
  return {vectorize(call, call.node.ints_attribute("pool_int64s"), x.to_int64s())};
}

}  // namespace

void register_tfidf_cpu(opdef::KernelRegistry& registry) {
  registry.add_dynamic("", "TfIdfVectorizer", run_tfidf);
}

}  // namespace onnxgrad::ops::tfidf_cpu
