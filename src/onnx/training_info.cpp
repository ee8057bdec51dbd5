#include "onnx/training_info.h"

#include <fmt/format.h>
#include <onnx/onnx_pb.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "base/check.h"
#include "base/files.h"
#include "onnx/exporter.h"
#include "onnx/wire.h"
#include "onnxgrad/error.h"

namespace onnxgrad::onnx_io {
namespace {

using Model = onnx::ModelProto;
using Info = onnx::TrainingInfoProto;

std::string place_of(std::size_t index, std::string_view part) {
  return fmt::format("training_info[{}].{}", index, part);
}

[[noreturn]] void refuse(std::size_t index, std::string_view part, const std::string& what,
                         const std::string& detail, Hint hint, const std::string& value = {}) {
  throw ModelError({.what = place_of(index, part) + ": " + what,
                    .where = {.value = value},
                    .detail = detail,
                    .hint = std::move(hint)});
}

// The parts of one message.
struct Parts {
  std::string_view initialization = {};
  std::string_view algorithm = {};
  std::vector<TrainingBinding> initial_values = {};
  std::vector<TrainingBinding> updates = {};
};

TrainingBinding read_binding(std::string_view bytes) {
  using Field = onnx::StringStringEntryProto;
  TrainingBinding binding;
  for (WireReader in(bytes); in.next();) {
    if (in.field() == Field::kKeyFieldNumber) binding.initializer = in.text();
    if (in.field() == Field::kValueFieldNumber) binding.output = in.text();
  }
  return binding;
}

Parts read_parts_of(std::string_view bytes) {
  Parts parts;
  for (WireReader in(bytes); in.next();) {
    switch (in.field()) {
      case Info::kInitializationFieldNumber:
        parts.initialization = in.bytes();
        break;
      case Info::kAlgorithmFieldNumber:
        parts.algorithm = in.bytes();
        break;
      case Info::kInitializationBindingFieldNumber:
        parts.initial_values.push_back(read_binding(in.bytes()));
        break;
      case Info::kUpdateBindingFieldNumber:
        parts.updates.push_back(read_binding(in.bytes()));
        break;
      default:
        break;
    }
  }
  return parts;
}

// The file without training information and with these messages, one after another, as its graph:
// repeated fields of protobuf messages are then concatenated, as ONNX defines the step.
std::string with_graph(std::string_view file, std::initializer_list<std::string_view> graphs) {
  std::string bytes;
  std::string_view rest = file;
  for (WireReader in(file); in.next();) {
    const auto size =
        static_cast<std::size_t>(in.raw_value().data() + in.raw_value().size() - rest.data());
    const std::string_view field = rest.substr(0, size);
    rest.remove_prefix(size);
    if (in.field() == Model::kTrainingInfoFieldNumber) continue;
    if (in.field() != Model::kGraphFieldNumber) bytes += field;
  }
  std::string graph;
  for (const std::string_view part : graphs) graph += part;
  WireWriter(bytes).bytes(Model::kGraphFieldNumber, graph);
  return bytes;
}

std::string_view graph_of(std::string_view file) {
  for (WireReader in(file); in.next();) {
    if (in.field() == Model::kGraphFieldNumber) return in.bytes();
  }
  return {};
}

// Loads it; errors name the part of the file.
FileModel load_part(const FileModel& file, std::string bytes, const std::string& place) {
  try {
    return load_bytes(std::move(bytes), {.external_root = file.external_root}, file.path);
  } catch (const ModelError& error) {
    Problem problem = error.problem();
    problem.what = place + ": " + problem.what;
    throw ModelError(std::move(problem));
  }
}

std::vector<std::string> names_of(const std::vector<ir::Value*>& values) {
  std::vector<std::string> names;
  for (const ir::Value* value : values) names.push_back(value->name);
  return names;
}

bool is_among(const std::vector<ir::Value*>& values, const std::string& name) {
  return std::ranges::find(values, name, &ir::Value::name) != values.end();
}

// Initializers become inputs with a default: nothing may take their first values for constants.
void open_initializers(TrainingInfo& info, const std::unordered_set<std::string>& changed) {
  std::shared_ptr<ir::Model> model = ir::writable(std::move(info.step.model));
  for (ir::Value* value : model->graph->initializers) {
    if (!changed.contains(value->name) || value->is_input) continue;
    value->is_input = true;
    model->graph->inputs.push_back(value);
  }
  info.step.model = std::move(model);
}

class Reader {
 public:
  explicit Reader(const FileModel& file)
      : file_(file), bytes_(file.bytes->whole()), graph_(graph_of(*bytes_)) {
    for (const ir::Value* value : file.model->graph->initializers) of_model_.insert(value->name);
  }

  std::vector<TrainingInfo> run() {
    std::vector<TrainingInfo> infos;
    for (const std::string& bytes : file_.model->opaque_training_info) {
      infos.push_back(read(infos.size(), read_parts_of(bytes)));
    }
    if (changed_.empty()) {
      throw ModelError({.what = "the training information of the model updates nothing",
                        .detail = "It has no update_binding.",
                        .hint = "Bind initializers to outputs there, or pass loss= and optimizer= "
                                "to train it otherwise."});
    }
    for (std::size_t i = 0; i < infos.size(); ++i) open_initializers(infos[i], opened_in(i));
    return infos;
  }

 private:
  TrainingInfo read(std::size_t index, const Parts& parts) {
    TrainingInfo info{.step = load_part(file_, with_graph(*bytes_, {graph_, parts.algorithm}),
                                        place_of(index, "algorithm")),
                      .updates = parts.updates};
    for (const ir::Value* value : info.step.model->graph->initializers) {
      if (!of_model_.contains(value->name)) info.own_initializers.insert(value->name);
    }
    for (const TrainingBinding& binding : info.updates) {
      check(index, "update_binding", binding, info, info.step.model->graph->outputs);
      note(index, "update_binding", binding.initializer, info, changed_);
    }
    read_initialization(index, parts, info);
    return info;
  }

  void read_initialization(std::size_t index, const Parts& parts, TrainingInfo& info) {
    info.initial_values = parts.initial_values;
    if (parts.initialization.empty() && info.initial_values.empty()) return;
    const std::string place = place_of(index, "initialization");
    info.initialization = load_part(file_, with_graph(*bytes_, {parts.initialization}), place);
    const ir::Graph& graph = *info.initialization->model->graph;
    for (const ir::Value* input : graph.inputs) {
      if (input->is_initializer()) continue;
      refuse(index, "initialization", fmt::format("it has the input '{}'", input->name),
             "Initial values are computed from nothing.",
             "Make the input an initializer of that graph.", input->name);
    }
    for (const TrainingBinding& binding : info.initial_values) {
      check(index, "initialization_binding", binding, info, graph.outputs);
      note(index, "initialization_binding", binding.initializer, info, initialized_);
    }
  }

  void check(std::size_t index, std::string_view part, const TrainingBinding& binding,
             const TrainingInfo& info, const std::vector<ir::Value*>& outputs) const {
    const auto& initializers = info.step.model->graph->initializers;
    if (!is_among(initializers, binding.initializer)) {
      const auto known = names_of(initializers);
      refuse(index, part, fmt::format("there is no initializer '{}'", binding.initializer),
             "Keys name initializers of the model's graph or of algorithm.",
             base::nearest_or(binding.initializer, known), binding.initializer);
    }
    if (!is_among(outputs, binding.output)) {
      const auto known = names_of(outputs);
      refuse(index, part,
             fmt::format("'{}' is to become '{}', which is no output", binding.initializer,
                         binding.output),
             fmt::format("Outputs: {}.", base::quote_list(known)),
             base::nearest_or(binding.output, known, "List it among the outputs of the graph."),
             binding.output);
    }
  }

  // Refuses a key that occurs twice: it would be open which value counts.
  void note(std::size_t index, std::string_view part, const std::string& name,
            const TrainingInfo& info, std::map<std::string, std::size_t>& places) {
    const auto [place, is_new] = places.emplace(name, index);
    if (!is_new) {
      refuse(index, part, fmt::format("'{}' is bound twice", name),
             fmt::format("It is bound in training_info[{}] already.", place->second),
             "Bind each initializer once; rename one if two algorithms have the same name.", name);
    }
    if (info.own_initializers.contains(name)) owners_[name] = index;
  }

  // Changed initializers that algorithm `index` sees.
  std::unordered_set<std::string> opened_in(std::size_t index) const {
    std::unordered_set<std::string> names;
    for (const auto& places : {changed_, initialized_}) {
      for (const auto& [name, place] : places) {
        const auto owner = owners_.find(name);
        if (owner == owners_.end() || owner->second == index) names.insert(name);
      }
    }
    return names;
  }

  const FileModel& file_;
  std::shared_ptr<const std::string_view> bytes_;
  std::string_view graph_;
  std::unordered_set<std::string> of_model_;
  std::map<std::string, std::size_t> changed_;      // bound initializers and where
  std::map<std::string, std::size_t> initialized_;  // initializers with initial values and where
  std::map<std::string, std::size_t> owners_;       // the training_info of each initializer
};

}  // namespace

bool has_training_info(const FileModel& file) { return !file.model->opaque_training_info.empty(); }

std::vector<TrainingInfo> read_training_info(const FileModel& file) {
  try {
    return Reader(file).run();
  } catch (const ModelError& error) {
    Problem problem = error.problem();
    if (problem.where.file.empty()) problem.where.file = file.path;
    throw ModelError(std::move(problem));
  }
}

std::string algorithm_scope(std::size_t index) {
  return '\x1e' + place_of(index, "algorithm");  // the name of no function
}

std::string initialized_note() {
  using Field = onnx::StringStringEntryProto;
  std::string bytes;
  WireWriter(bytes).message(Model::kMetadataPropsFieldNumber, [](WireWriter& entry) {
    entry.bytes(Field::kKeyFieldNumber, kInitializedKey);
    entry.bytes(Field::kValueFieldNumber, "true");
  });
  return bytes;
}

bool is_initialized(const FileModel& file) {
  const auto& entries = file.model->metadata;
  return std::ranges::find(entries, kInitializedKey, &ir::Metadata::value_type::first) !=
         entries.end();
}

bool has_initial_values(const FileModel& file) {
  return std::ranges::any_of(file.model->opaque_training_info, [](const std::string& bytes) {
    return !read_parts_of(bytes).initial_values.empty();
  });
}

std::string write_training_info(const ir::Graph& algorithm,
                                const std::vector<TrainingBinding>& updates) {
  using Field = onnx::StringStringEntryProto;
  std::string bytes;
  WireWriter out(bytes);
  for (const TrainingBinding& binding : updates) {
    out.message(Info::kUpdateBindingFieldNumber, [&](WireWriter& entry) {
      entry.bytes(Field::kKeyFieldNumber, binding.initializer);
      entry.bytes(Field::kValueFieldNumber, binding.output);
    });
  }
  out.bytes(Info::kAlgorithmFieldNumber, export_graph(algorithm));
  return bytes;
}

}  // namespace onnxgrad::onnx_io
