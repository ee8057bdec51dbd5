#include "train/transfer/replace_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "ir/pattern.h"
#include "ir/uses.h"
#include "onnxgrad/option_error.h"
#include "train/adapters/packed_matrix.h"
#include "train/tools/patterns.h"
#include "train/transfer/one_vs_rest.h"
#include "train/transfer/score_layers.h"
#include "train/transfer/width_change.h"
#include "train/weights/initialize.h"

namespace onnxgrad::train {
namespace {

using ir::is_op;
using ir::Node;
using ir::Value;
using Kind = ScoreLayer::Kind;

/// Layers whose results are the scores of one output, and what depends on their width.
struct ClassHead {
  std::vector<const ScoreLayer*> layers;
  std::unique_ptr<WidthChange> change;
};

/// A layer that is no head.
struct OtherLayer {
  const ScoreLayer* layer = nullptr;
  std::string reason;
};

bool has_layer(const ClassHead& head, const ScoreLayer& layer) {
  return std::ranges::find(head.layers, &layer) != head.layers.end();
}

// The nearest of the layers that `value` is computed by; nullptr: none.
const ScoreLayer* layer_before(const Value* value, const std::vector<ScoreLayer>& layers) {
  std::unordered_set<const Value*> seen;
  std::vector<const Value*> open{value};
  for (std::size_t i = 0; i < open.size(); ++i) {
    if (open[i] == nullptr || open[i]->producer == nullptr || !seen.insert(open[i]).second)
      continue;
    const Node* node = open[i]->producer;
    for (const ScoreLayer& layer : layers) {
      if (std::ranges::find(layer.nodes, node) != layer.nodes.end()) return &layer;
    }
    open.insert(open.end(), node->inputs.begin(), node->inputs.end());
  }
  return nullptr;
}

class HeadFinder {
 public:
  HeadFinder(ir::Model& file, const ir::Model& working, const std::vector<ScoreLayer>& layers,
             const HeadOptions& options)
      : file_(file), working_(working), layers_(layers), options_(options) {
    // The last layers first: few others are followed far.
    for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
      const bool is_known = std::ranges::any_of(
          heads_, [&](const ClassHead& head) { return has_layer(head, *layer); });
      if (!is_known) examine(*layer);
    }
    std::ranges::reverse(heads_);
  }

  std::vector<ClassHead>& heads() { return heads_; }
  const std::vector<OtherLayer>& others() const { return others_; }

 private:
  void examine(const ScoreLayer& layer) {
    ClassHead head{.layers = {&layer},
                   .change = std::make_unique<WidthChange>(file_, working_, options_.classes,
                                                           options_.labels)};
    std::string reason = head.change->follow(head.layers);
    std::string first = reason;
    // Layers whose results are summed up are one head.
    while (!reason.empty() && head.change->other() != nullptr) {
      const ScoreLayer* next = layer_before(head.change->other(), layers_);
      if (next == nullptr || has_layer(head, *next)) break;
      head.layers.push_back(next);
      reason = head.change->follow(head.layers);
    }
    if (reason.empty()) {
      heads_.push_back(std::move(head));
    } else {
      others_.push_back({&layer, std::move(first)});
    }
  }

  ir::Model& file_;
  const ir::Model& working_;
  const std::vector<ScoreLayer>& layers_;
  const HeadOptions& options_;
  std::vector<ClassHead> heads_;
  std::vector<OtherLayer> others_;
};

bool is_called(const ScoreLayer& layer, const std::string& name) {
  const auto is_output = [&](const Node* node) {
    return std::ranges::any_of(node->outputs, [&](const Value* output) {
      return output != nullptr && output->name == name;
    });
  };
  return layer.name == name || std::ranges::any_of(layer.nodes, is_output) ||
         std::ranges::any_of(layer.names,
                             [&](const std::string& known) { return glob_match(name, known); });
}

bool is_called(const ClassHead& head, const std::string& name, const ir::Graph& graph) {
  const auto layer = [&](const ScoreLayer* one) { return is_called(*one, name); };
  if (std::ranges::any_of(head.layers, layer)) return true;
  const Value* value = graph.find(name);
  return value != nullptr && head.change->reaches(value);
}

// "'fc' (1000)"
std::string name_of(const ScoreLayer& layer) {
  const std::string& output = layer.nodes.front()->output(0)->name;
  return layer.name.empty() ? output : layer.name;
}

std::vector<std::string> names_of(const std::vector<ClassHead>& heads) {
  std::vector<std::string> names;
  for (const ClassHead& head : heads) names.push_back(name_of(*head.layers.front()));
  return names;
}

[[noreturn]] void refuse_no_head(const std::vector<OtherLayer>& others) {
  std::string detail;
  for (std::size_t i = 0; i < others.size() && i < 3; ++i) {
    detail += fmt::format("{}'{}': {}", i == 0 ? "Last layers: " : "; ", name_of(*others[i].layer),
                          others[i].reason);
  }
  throw ModelError(
      {.what = "the model has no head: no layer's results are its outputs up to labels, "
               "probabilities and what averages them",
       .detail = detail.empty() ? "It has no layer with constant weights." : detail + ".",
       .hint = "Cut the model at its features with features(), and put a layer behind them."});
}

std::vector<ClassHead*> choose(std::vector<ClassHead>& heads, const std::vector<OtherLayer>& others,
                               const HeadOptions& options, const ir::Graph& graph) {
  const bool is_auto = options.at.empty() || options.at == std::vector<std::string>{"auto"};
  const bool is_all = options.at == std::vector<std::string>{"all"};
  std::vector<ClassHead*> chosen;
  if (is_auto || is_all) {
    if (heads.empty()) refuse_no_head(others);
    if (heads.size() > 1 && is_auto) {
      throw ModelError({.what = fmt::format("the model has {} heads", heads.size()),
                        .detail = "Heads: " + base::quote_list(names_of(heads)) + ".",
                        .hint = "Choose with at=: one of them, several, or 'all'."});
    }
    for (ClassHead& head : heads) chosen.push_back(&head);
    return chosen;
  }
  for (const std::string& name : options.at) {
    bool any = false;
    for (ClassHead& head : heads) {
      if (!is_called(head, name, graph)) continue;
      any = true;
      if (std::ranges::find(chosen, &head) == chosen.end()) chosen.push_back(&head);
    }
    if (any) continue;
    for (const OtherLayer& other : others) {
      if (!is_called(*other.layer, name)) continue;
      throw ModelError({.what = fmt::format("'{}' is no head: {}", name, other.reason),
                        .where = {.value = name},
                        .detail = "Heads: " + base::quote_list(names_of(heads)) + ".",
                        .hint = "Cut the model there with features()."});
    }
    const auto names = names_of(heads);
    throw ModelError({.what = fmt::format("the model has no head '{}'", base::printable(name)),
                      .where = {.value = name},
                      .detail = "Heads: " + base::quote_list(names) + ".",
                      .hint = base::nearest_or(name, names, "Leave out at=.")});
  }
  return chosen;
}

/// Puts new weights into the layers of one head.
class LayerWriter {
 public:
  LayerWriter(ir::Model& file, WidthChange& change, const HeadOptions& options)
      : file_(file), change_(change), options_(options), uses_(*file.graph) {}

  void write(const ScoreLayer& layer) {
    if (layer.kind == Kind::kClassifier || layer.kind == Kind::kRegressor) {
      write_attributes(layer);
      return;
    }
    change_.edit([this, &layer] {
      write_weight(layer);
      for (Node* node : layer.nodes) write_bias(layer, *node);
    });
  }
  const std::vector<Value*>& made() const { return made_; }

 private:
  std::size_t width_axis(const ScoreLayer& layer) const {
    switch (layer.kind) {
      case Kind::kLinear:
        return layer.is_transposed ? 0 : 1;
      case Kind::kStacked:
        return WidthChange::constant(layer.weight)->dims().rank() - 1;
      case Kind::kTransposed:
        return 1;
      default:
        return 0;
    }
  }

  // Whether the nodes of the layer alone read its weight, through nodes that transpose it.
  bool is_own(const ScoreLayer& layer) const {
    std::vector<const Value*> open{layer.weight};
    for (std::size_t i = 0; i < open.size(); ++i) {
      for (const ir::Use& use : uses_.of(open[i])) {
        if (use.node == nullptr || use.node->graph != file_.graph.get()) return false;
        const bool is_layer = std::ranges::find(layer.nodes, use.node) != layer.nodes.end();
        if (!is_layer && !is_op(*use.node, {"Transpose", "Identity"})) return false;
        if (!is_layer) open.push_back(use.node->output(0));
      }
    }
    return true;
  }

  void write_weight(const ScoreLayer& layer) {
    const Dims& old = WidthChange::constant(layer.weight)->dims();
    std::vector<std::int64_t> dims(old.begin(), old.end());
    dims[width_axis(layer)] = change_.new_width();
    Value* const weight = file_.graph->find(layer.weight->name);
    if (!layer.is_computed && is_own(layer)) {
      Value* const made = change_.new_initializer(weight, Tensor::zeros(layer.dtype, Dims(dims)));
      ir::replace_uses(*file_.graph, {{weight, made}});
      made_.push_back(made);
      return;
    }
    Value* made = nullptr;
    for (Node* node : layer.nodes) {
      const bool is_read_transposed =
          is_op(*node, {"Gemm"}) && node->int_attribute("transB", 0) != 0;
      if (layer.kind == Kind::kLinear) {
        dims = {layer.inputs, change_.new_width()};
        if (is_read_transposed) std::swap(dims[0], dims[1]);
      }
      if (made == nullptr || made->initializer.dims() != Dims(dims)) {
        made = change_.new_initializer(weight, Tensor::zeros(layer.dtype, Dims(dims)));
        made_.push_back(made);
      }
      change_.drop(std::exchange(node->inputs[1], made));
      if (!is_matmul_n_bits(*node)) continue;
      for (std::size_t i = 2; i < node->inputs.size(); ++i) {
        if (node->inputs[i] != nullptr) change_.drop(node->inputs[i]);
      }
      node->op_type = "MatMul";  // the new weight is float
      node->domain.clear();
      node->attributes.clear();
      node->inputs.resize(2);
    }
  }

  void write_bias(const ScoreLayer& layer, Node& node) {
    Value* const bias = node.inputs.size() > 2 ? node.inputs[2] : nullptr;
    if (bias == nullptr) return;
    const auto known = biases_.find(bias);
    if (known != biases_.end()) {
      node.inputs[2] = known->second;
      return;
    }
    std::vector<std::int64_t> dims{change_.new_width()};
    if (const Tensor* numbers = WidthChange::constant(bias)) {
      const Dims& old = numbers->dims();
      if (old.rank() == 0 || old[old.rank() - 1] != layer.outputs) return;  // one for all
      dims.assign(old.begin(), old.end());
      dims.back() = change_.new_width();
    }
    Value* const made = change_.new_initializer(bias, Tensor::zeros(layer.dtype, Dims(dims)));
    node.inputs[2] = made;
    biases_.emplace(bias, made);
    made_.push_back(made);
  }

  // Uniform as InitScheme::kGlorotUniform: the weights are no tensors that could be drawn later.
  void write_attributes(const ScoreLayer& layer) {
    Node& node = *layer.nodes.front();
    const bool is_classifier = layer.kind == Kind::kClassifier;
    const std::int64_t width = is_classifier ? options_.classes : change_.new_width();
    const auto rows = static_cast<std::size_t>(width);
    const auto inputs = static_cast<std::size_t>(layer.inputs);
    const bool is_logistic = node.string_attribute("post_transform", "NONE") == "LOGISTIC";
    // Two classes of one score, as scikit-learn has them: opposite rows.
    const bool is_pair = is_classifier && rows == 2 && layer.outputs == 2;
    Distribution distribution;
    if (options_.scheme != InitScheme::kZeros) {
      distribution = {Distribution::Kind::kUniform,
                      std::sqrt(6.0 / static_cast<double>(inputs + rows))};
    }
    const Dims dims{static_cast<std::int64_t>(rows * inputs)};
    const Tensor drawn = draw(distribution, DataType::kFloat32, dims, options_.seed, 0);
    const auto numbers = drawn.data<float>();
    std::vector<float> coefficients(numbers.begin(), numbers.end());
    for (std::size_t i = 0; is_pair && i < inputs; ++i) coefficients[i] = -coefficients[inputs + i];
    node.set_attribute("coefficients", std::move(coefficients));
    if (!node.floats_attribute("intercepts").empty()) {
      node.set_attribute("intercepts", std::vector<float>(rows, 0.0F));
    }
    if (!is_classifier) {
      node.set_attribute("targets", width);
      return;
    }
    if (is_logistic && layer.outputs == 2 && rows > 2) {
      node.set_attribute("post_transform", std::string("SOFTMAX"));
    }
    node.set_attribute("multi_class", static_cast<std::int64_t>(rows > 2));
    write_labels(node);
  }

  void write_labels(Node& node) {
    const bool was_text = node.find_attribute("classlabels_strings") != nullptr;
    const Tensor labels = change_.labels(was_text ? DataType::kString : DataType::kInt64);
    node.remove_attribute("classlabels_ints");
    node.remove_attribute("classlabels_strings");
    if (labels.dtype() == DataType::kString) {
      const auto texts = labels.strings();
      node.set_attribute("classlabels_strings",
                         std::vector<std::string>(texts.begin(), texts.end()));
    } else {
      node.set_attribute("classlabels_ints", labels.to_int64s());
    }
  }

  ir::Model& file_;
  WidthChange& change_;
  const HeadOptions& options_;
  ir::Uses uses_;
  std::unordered_map<const Value*, Value*> biases_;
  std::vector<Value*> made_;
};

template <class Label>
void check_labels(std::vector<Label> labels) {
  std::ranges::sort(labels);
  const auto twice = std::ranges::adjacent_find(labels);
  if (twice == labels.end()) return;
  throw OptionError({.what = fmt::format("labels= has '{}' twice", *twice),
                     .hint = "Give each class a label of its own."});
}

void check_options(const HeadOptions& options) {
  if (options.classes < 1 || options.classes > (std::int64_t{1} << 31)) {
    throw OptionError(
        {.what = fmt::format("classes={}: it is the number of classes, 1 or more", options.classes),
         .hint = "Give the number of classes of the new data."});
  }
  if (!options.labels.is_defined()) return;
  if (options.labels.dtype() == DataType::kString) {
    const auto texts = options.labels.strings();
    check_labels(std::vector<std::string>(texts.begin(), texts.end()));
  } else if (options.labels.dtype() == DataType::kInt64) {
    check_labels(options.labels.to_int64s());
  }
  const DataType dtype = options.labels.dtype();
  if (options.labels.num_elements() != options.classes ||
      (dtype != DataType::kInt64 && dtype != DataType::kString)) {
    throw OptionError(
        {.what = fmt::format("labels= has {} labels of type {} for {} classes",
                             options.labels.num_elements(), dtype_name(dtype), options.classes),
         .hint = "Give one integer or string for each class."});
  }
}

}  // namespace

std::vector<std::string> replace_heads(ir::Model& file, const ir::Model& working,
                                       const HeadOptions& options) {
  check_options(options);
  constexpr std::int64_t kConstantInitializers = 4;
  if (file.ir_version < kConstantInitializers) {  // where every initializer is listed as an input
    ir::close_defaults(*file.graph);
    file.ir_version = kConstantInitializers;
  }
  join_one_vs_rest(file);
  const std::vector<ScoreLayer> layers = find_score_layers(file, working);
  HeadFinder finder(file, working, layers, options);
  std::vector<Value*> made;
  const std::vector<ClassHead*> chosen =
      choose(finder.heads(), finder.others(), options, *file.graph);
  bool any_labels = false;
  for (ClassHead* head : chosen) {
    LayerWriter writer(file, *head->change, options);
    for (const ScoreLayer* layer : head->layers) writer.write(*layer);
    head->change->apply();
    any_labels = any_labels || head->change->has_labels();
    made.insert(made.end(), writer.made().begin(), writer.made().end());
    const auto& biases = head->change->new_biases();
    made.insert(made.end(), biases.begin(), biases.end());
  }
  if (options.labels.is_defined() && !any_labels) {
    throw ModelError({.what = "the model returns no labels that labels= could replace",
                      .hint = "Leave out labels=: its outputs are numbers of classes, or scores."});
  }
  file.opaque_training_info.clear();  // it names weights of the former shapes
  ir::sort_topologically(*file.graph);
  std::vector<std::string> names;
  for (const Value* value : made) names.push_back(value->name);
  return names;
}

Value* head_input(ir::Model& file, const ir::Model& working) {
  constexpr std::int64_t kAny = 3;  // classes: nothing is changed
  const HeadOptions options{.classes = kAny};
  join_one_vs_rest(file);
  const std::vector<ScoreLayer> layers = find_score_layers(file, working);
  HeadFinder finder(file, working, layers, options);
  const std::vector<ClassHead*> chosen =
      choose(finder.heads(), finder.others(), options, *file.graph);
  return chosen.front()->layers.front()->nodes.front()->inputs.front();
}

}  // namespace onnxgrad::train
