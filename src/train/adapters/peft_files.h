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

/// An adapter as a folder has it.
struct PeftAdapter {
  AdapterOptions options;  ///< targets are modules, full are names of weights
  NamedTensors tensors;    ///< all of one rank; names without kPeftPrefix
};

/// Writes both files. `tensors` have PEFT's names and shapes. Throws: ModelError (a kind that PEFT
/// does not have), CheckpointError.
void write_peft_files(const std::string& folder, const RecordedAdapter& adapter,
                      NamedTensors tensors);

/// Reads both files. A smaller rank of single layers (rank_pattern) is filled up with zeros, and
/// another scale (alpha_pattern) multiplied into B. Throws: CheckpointError.
PeftAdapter read_peft_files(const std::string& folder);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_ADAPTERS_PEFT_FILES_H_
