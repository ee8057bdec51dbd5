#include "device/cuda/image_cache.h"

#include <cstdlib>
#include <filesystem>
#include <span>

#include "base/checksum.h"
#include "base/files.h"
#include "onnxgrad/error.h"

namespace onnxgrad::device::cuda {
namespace {

namespace fs = std::filesystem;

// Empty: there is no cache.
fs::path folder() {
  if (const char* own = std::getenv("ONNXGRAD_CUDA_CACHE")) return own;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/') {
    return fs::path(cache) / "onnxgrad" / "cuda";
  }
  const char* home = std::getenv("HOME");
  return home == nullptr || *home != '/' ? fs::path()
                                         : fs::path(home) / ".cache" / "onnxgrad" / "cuda";
}

constexpr std::size_t kChecksumLength = 32;

}  // namespace

std::optional<std::string> find_image(const std::string& key) {
  const fs::path where = folder();
  if (where.empty()) return std::nullopt;
  const fs::path path = where / (base::checksum_hex(key) + ".image");
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  try {
    const auto file = base::ReadableFile::open(path.string(), base::PathOf::kOwn);
    std::string kept(static_cast<std::size_t>(file.size_bytes()), '\0');
    file.read(0, std::as_writable_bytes(std::span(kept)));
    if (kept.size() <= kChecksumLength) return std::nullopt;
    std::string image = kept.substr(kChecksumLength);
    if (kept.substr(0, kChecksumLength) != base::checksum_hex(key + image)) return std::nullopt;
    return image;
  } catch (const Error&) {
    return std::nullopt;  // it is compiled again
  }
}

void keep_image(const std::string& key, const std::string& image) {
  const fs::path where = folder();
  if (where.empty()) return;
  std::error_code error;
  fs::create_directories(where, error);
  try {
    base::write_atomically((where / (base::checksum_hex(key) + ".image")).string(),
                           base::checksum_hex(key + image) + image, base::Existing::kReplaceOwn);
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): a cache may be read-only
  }
}

}  // namespace onnxgrad::device::cuda
