#ifndef ONNXGRAD_TRAIN_ADAPTERS_PEFT_FILES_H_
#define ONNXGRAD_TRAIN_ADAPTERS_PEFT_FILES_H_

#include <string>
#include <vector>

#include "onnxgrad/model.h"
#include "train/weights/adapter_record.h"

// Adapters in the files of PEFT (https://huggingface.co/docs/peft/developer_guides/checkpoint):
// adapter_config.json and adapter_model.safetensors, whose tensors are named
// "base_model.model.<module>.lora_A.weight".

namespace onnxgrad::train {

inline constexpr std::string_view kPeftPrefix = "base_model.model.";

/// An adapter as a folder has it; names are without kPeftPrefix.
struct PeftAdapter {
  AdapterOptions options;  ///< full are names of weights
  LayerForms layers;
  NamedTensors tensors;
  NamedTensors frozen;  ///< weights of the model that are not trained with the adapter
  /// "ensure_weight_tying": a matrix of scores that is trained stays the table of embeddings
  /// too.
  bool keeps_ties = false;
};

/// Writes both files. `tensors` have PEFT's names and shapes. Throws: ModelError (a kind that PEFT
/// does not have), CheckpointError. `keeps_ties`: see PeftAdapter.
void write_peft_files(const std::string& folder, const RecordedAdapter& adapter,
                      NamedTensors tensors, bool keeps_ties = false);

/// Reads both files. Throws: CheckpointError.
PeftAdapter read_peft_files(const std::string& folder);

/// Brings the tensors to the ranks and scales of `wanted`, which has the same modules: smaller
/// ranks are filled up with zeros, and scales multiplied into B. Throws: ModelError (another form).
void fit_tensors(PeftAdapter& adapter, const LayerForms& wanted);

/// The modules of which PEFT saves all weights, "modules_to_save": those of options.full but for
/// adapted ones and for single biases.
std::vector<std::string> saved_modules(const RecordedAdapter& adapter);

/// PEFT's name of a weight of the model: "fc.base_layer.bias" of "fc.bias" if `fc` is adapted.
std::string peft_weight_name(const std::string& name, const RecordedAdapter& adapter);
/// The name in the model: without ".base_layer".
std::string without_base_layer(std::string_view name);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_ADAPTERS_PEFT_FILES_H_
