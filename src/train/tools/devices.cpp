#include "train/tools/devices.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda_plugin.h"
#include "device/plugin_lock.h"
#include "dist/job.h"
#include "onnxgrad/error.h"
#include "ops/builtin.h"
#include "train/tools/engine.h"
#include "train/tools/self_check.h"

namespace onnxgrad::train {
namespace {

using Warn = std::function<void(const std::string&)>;

constexpr const char* kPluginsVariable = "ONNXGRAD_DEVICE_PLUGINS";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_plugin_name(std::string_view name) {
  return !name.empty() && name != "cpu" && name != "auto" &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string_view::npos;
}

// An engine with what it refers to.
struct OwnedEngine {
  std::unique_ptr<device::Device> device;
  runtime::Engine engine;
};

// A plugin and the engines on its devices.
struct Installed {
  device::DevicePlugin plugin;
  std::string origin;
  std::unique_ptr<opdef::KernelRegistry> kernels = nullptr;  ///< made with the first engine
  std::map<int, std::shared_ptr<const runtime::Engine>> engines = {};
  std::map<int, bool> passes = {};  ///< the self check

  std::string name(int index) const { return fmt::format("{}:{}", plugin.name, index); }

  std::shared_ptr<const runtime::Engine> engine(int index) {
    auto& made = engines[index];
    if (made == nullptr) {
      if (kernels == nullptr) {
        kernels = std::make_unique<opdef::KernelRegistry>();
        plugin.register_kernels(cpu_engine().kernels, *kernels);
      }
      std::unique_ptr<device::Device> device = plugin.make_device(index);
      device::Device& used = *device;
      const auto owned = std::make_shared<const OwnedEngine>(
          OwnedEngine{.device = std::move(device),
                      .engine = {.ops = builtin_ops(),
                                 .kernels = *kernels,
                                 .make_inferer = cpu_engine().make_inferer,
                                 .device = used,
                                 .host_kernels = &cpu_engine().kernels}});
      made = {owned, &owned->engine};
    }
    return made;
  }
};

// The devices of the process, which are added but never removed.
class DeviceTable {
 public:
  void install(const device::DevicePlugin& plugin, std::string_view origin) {
    const std::scoped_lock lock(mutex_);
    add(plugin, origin);
  }

  void add_builtin(const device::DevicePlugin& plugin) {
    installed_.push_back({.plugin = plugin, .origin = "built in"});
  }

  void load(const std::string& file) {
    const std::scoped_lock lock(mutex_);
    load_file(file);
  }

  std::vector<DeviceInfo> list() {
    const std::scoped_lock lock(mutex_);
    load_listed();
    return known();
  }

  device::Device* in_use(DlpackDevice memory) {
    const std::scoped_lock lock(mutex_);
    for (const Installed& installed : installed_) {
      for (const auto& [index, engine] : installed.engines) {
        const bool is_there = engine != nullptr && !engine->device.is_host();
        if (is_there && engine->device.dlpack_device() == memory) return &engine->device;
      }
    }
    return nullptr;
  }

  std::shared_ptr<const runtime::Engine> engine(std::string_view device, const Warn& warn) {
    if (device == "cpu") return {std::shared_ptr<const void>(), &cpu_engine()};
    const std::scoped_lock lock(mutex_);
    load_listed();
    if (device == "auto") {
      for (Installed& installed : installed_) {
        if (installed.plugin.count() == 0) continue;
        if (auto engine = checked_engine(installed, warn)) return engine;
      }
      return {std::shared_ptr<const void>(), &cpu_engine()};
    }
    const std::string_view name = device.substr(0, device.find(':'));
    const auto found = std::ranges::find(installed_, name, [](const Installed& installed) {
      return std::string_view(installed.plugin.name);
    });
    if (found == installed_.end()) throw_absent(device);
    if (found->plugin.count() == 0 && found->plugin.why_none != nullptr) {
      const std::string why = found->plugin.why_none();
      throw DeviceError({.what = fmt::format("there is no device '{}'", device),
                         .detail = why,
                         .hint = "Or use device='cpu'."});
    }
    const bool is_numbered = device.find(':') != std::string_view::npos;
    const auto index = is_numbered ? index_of(device) : index_of_process(found->plugin);
    if (!index || *index >= found->plugin.count()) throw_absent(device);
    return found->engine(*index);
  }

 private:
  // nullptr: the device fails the check.
  static std::shared_ptr<const runtime::Engine> checked_engine(Installed& installed,
                                                               const Warn& warn) {
    const int index = index_of_process(installed.plugin).value_or(0);
    const auto known = installed.passes.find(index);
    if (known != installed.passes.end() && !known->second) return nullptr;
    std::string problem;
    try {
      auto engine = installed.engine(index);
      if (known != installed.passes.end()) return engine;
      problem = self_check(*engine);
      if (problem.empty()) {
        installed.passes[index] = true;
        return engine;
      }
    } catch (const DeviceError& error) {
      problem = error.what();
    }
    installed.passes[index] = false;
    const std::string text =
        fmt::format("device='auto' leaves {} out, since it fails its check: {}",
                    installed.name(index), problem);
    if (warn) {
      warn(text);
    } else {
      fmt::print(stderr, "onnxgrad: {}\n", text);
    }
    return nullptr;
  }

  // The CPU, and the devices of the plugins that are loaded.
  std::vector<DeviceInfo> known() const {
    std::vector<DeviceInfo> found{{.name = "cpu", .origin = "built in"}};
    for (const Installed& installed : installed_) {
      for (int i = 0; i < installed.plugin.count(); ++i) {
        found.push_back({.name = installed.name(i), .origin = installed.origin});
      }
    }
    return found;
  }

  // The device of a process that names none: in a job, that of its rank on this host.
  static std::optional<int> index_of_process(const device::DevicePlugin& plugin) {
    if (plugin.index_of_rank == nullptr) return 0;
    const dist::Job job = dist::find_job(dist::process_environment());
    if (job.size == 1) return 0;
    if (job.local_rank >= 0) return plugin.index_of_rank(job.local_rank);
    throw DeviceError({.what = fmt::format("{} does not say which of the processes of this host "
                                           "this one is",
                                           dist::launcher_name(job.launcher)),
                       .hint = fmt::format("Give the number of the device: '{}:0'.", plugin.name)});
  }

  // nullopt: what follows the colon is no number.
  static std::optional<int> index_of(std::string_view device) {
    const std::size_t colon = device.find(':');
    const std::string_view digits = device.substr(colon + 1);
    int index = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    const bool is_number = error == std::errc() && end == digits.data() + digits.size();
    return is_number && index >= 0 ? std::optional(index) : std::nullopt;
  }

  [[noreturn]] void throw_absent(std::string_view device) const {
    std::vector<std::string> names;
    for (const DeviceInfo& one : known()) names.push_back("'" + one.name + "'");
    throw DeviceError(
        {.what = fmt::format("there is no device '{}'", device),
         .detail = fmt::format("Available: {}.{}", fmt::join(names, ", "),
                               installed_.empty() ? " This onnxgrad computes on the CPU." : ""),
         .hint = fmt::format("Use one of these; other devices come from plugins, "
                             "which {} lists or load_device_plugin() loads.",
                             kPluginsVariable)});
  }

  void add(const device::DevicePlugin& plugin, std::string_view origin) {
    const std::string_view lock = plugin.lock == nullptr ? "" : plugin.lock;
    if (lock != ONNXGRAD_PLUGIN_LOCK) {
      throw DeviceError({.what = "the plugin was built for another onnxgrad",
                         .where = {.file = std::string(origin)},
                         .detail = fmt::format("It has lock '{}', this onnxgrad '{}'.", lock,
                                               ONNXGRAD_PLUGIN_LOCK),
                         .hint = "Install the plugin and onnxgrad in the same version, or build "
                                 "the plugin from the headers of this onnxgrad."});
    }
    const std::string_view name = plugin.name == nullptr ? "" : plugin.name;
    const bool is_taken = std::ranges::any_of(
        installed_, [&](const Installed& installed) { return name == installed.plugin.name; });
    if (!is_plugin_name(name) || is_taken) {
      throw DeviceError({.what = fmt::format("the plugin's device is called '{}'{}", name,
                                             is_taken ? ", as that of another plugin" : ""),
                         .where = {.file = std::string(origin)},
                         .hint = "Build the plugin with a name of its own, of lower-case letters, "
                                 "digits and underscores; 'cpu' and 'auto' are taken."});
    }
    installed_.push_back({.plugin = plugin, .origin = std::string(origin)});
  }

  // Symbols of the plugin are its own, and it is never unloaded: threads may still run in it.
  void load_file(const std::string& file) {
    std::error_code error;
    const std::string path = std::filesystem::canonical(file, error).string();
    if (error || std::ranges::find(installed_, path, &Installed::origin) != installed_.end()) {
      if (!error) return;
      throw DeviceError({.what = "there is no such plugin",
                         .where = {.file = file},
                         .detail = error.message(),
                         .hint = "Give the path of the plugin's shared library."});
    }
    void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* reason = ::dlerror();
      throw DeviceError({.what = "the plugin cannot be loaded",
                         .where = {.file = file},
                         .detail = reason == nullptr ? "" : reason,
                         .hint = "Install the libraries that it names, or build it again."});
    }
    const auto plugin = reinterpret_cast<device::PluginFn>(::dlsym(library, device::kPluginSymbol));
    const device::DevicePlugin* const found = plugin == nullptr ? nullptr : plugin();
    if (found == nullptr) {
      throw DeviceError({.what = "the library is no plugin of onnxgrad",
                         .where = {.file = file},
                         .detail = fmt::format("It has no function {}().", device::kPluginSymbol),
                         .hint = "Give the shared library of a device plugin."});
    }
    add(*found, path);
  }

  void load_listed() {
    if (std::exchange(has_loaded_listed_, true)) return;
    std::string rest = variable(kPluginsVariable);
    while (!rest.empty()) {
      const std::size_t colon = rest.find(':');
      const std::string file = rest.substr(0, colon);
      rest = colon == std::string::npos ? "" : rest.substr(colon + 1);
      if (!file.empty()) load_file(file);
    }
  }

  std::mutex mutex_;
  std::list<Installed> installed_;  ///< engines refer to what is in it
  bool has_loaded_listed_ = false;
};

DeviceTable& table() {
  static auto* const devices = [] {
    auto* made = new DeviceTable;  // threads of devices outlive statics
    made->add_builtin(device::cuda::cuda_plugin(
        [](const opdef::KernelRegistry& /*cpu*/, opdef::KernelRegistry& own) {
          ops::register_builtin_cuda_kernels(own);
        }));
    return made;
  }();
  return *devices;
}

}  // namespace

std::shared_ptr<const runtime::Engine> engine_on(std::string_view device, const Warn& warn) {
  if (!device.empty()) return table().engine(device, warn);
  const std::string wanted = variable("ONNXGRAD_DEVICE");
  return table().engine(wanted.empty() ? "cpu" : wanted, warn);
}

device::Device* device_in_use(DlpackDevice memory) { return table().in_use(memory); }

void install_device(const device::DevicePlugin& plugin, std::string_view origin) {
  table().install(plugin, origin);
}

void load_device_plugin(const std::string& file) { table().load(file); }

std::vector<DeviceInfo> installed_devices() { return table().list(); }

}  // namespace onnxgrad::train
