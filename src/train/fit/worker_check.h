#ifndef ONNXGRAD_TRAIN_FIT_WORKER_CHECK_H_
#define ONNXGRAD_TRAIN_FIT_WORKER_CHECK_H_

#include <string>
#include <utility>
#include <vector>

#include "onnxgrad/trainer.h"
#include "train/fit/batch_feed.h"
#include "train/session/session.h"

namespace onnxgrad::train {

/// Options that must agree on all workers of a fit, by names that users know. The first one that
/// differs is reported, so causes come before effects.
using Fingerprint = std::vector<std::pair<std::string, std::string>>;
Fingerprint fingerprint_of(const Session& session, const FitOptions& options,
                           const BatchFeed& feed);

/// Compares the fingerprints of all workers, which call it too. Throws on all of them: OptionError
/// naming the first difference, and its worker.
void check_same(const Fingerprint& fingerprint, const Workers& workers);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FIT_WORKER_CHECK_H_
