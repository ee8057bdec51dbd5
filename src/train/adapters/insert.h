#ifndef ONNXGRAD_TRAIN_ADAPTERS_INSERT_H_
#define ONNXGRAD_TRAIN_ADAPTERS_INSERT_H_

#include <vector>

#include "ir/graph.h"
#include "opdef/registry.h"
#include "train/adapters/layers.h"
#include "train/weights/adapter_record.h"

namespace onnxgrad::train {

/// Adds an adapter to `file`, a graph in the file's own operator set, as add_adapter() of
/// onnxgrad/adapters.h describes, and to its record. `working` is its working copy. With `forms`
/// their modules are adapted, not the targets of the options. Throws: ModelError, OptionError.
void insert_adapter(ir::Model& file, const ir::Model& working, const opdef::OpRegistry& registry,
                    const AdapterOptions& options, const LayerForms& forms = {});

/// Removes the nodes, the weights and the record of all adapters: what insert_adapter() was given,
/// if nothing else has changed. Throws: ModelError (a value of the record is missing).
void remove_adapters(ir::Model& file);

/// The layers that the targets of the options name. Throws: ModelError (a pattern that matches no
/// layer, no layer at all).
std::vector<AdaptableLayer> choose_layers(std::vector<AdaptableLayer> layers,
                                          const AdapterOptions& options);

/// The layers of these modules. Throws: ModelError (one is not there).
std::vector<AdaptableLayer> named_layers(std::vector<AdaptableLayer> layers,
                                         const LayerForms& forms);

/// Throws ModelError if a weight is read in two ways: it would have two adapters of one name.
void refuse_two_readings(const std::vector<AdaptableLayer>& layers);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_ADAPTERS_INSERT_H_
