// SPDX-License-Identifier: BSD-3-Clause
// load_: loads a quantized model from a file that need not be trusted.
//
// Everything is checked before the model changes and before a kernel reads a value: the consistency
// of the file, its modules by their constructors (on the meta device), names, shapes and dtypes
// against the model, then the checksum of the data and the values.
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>

#include "api/files.h"
#include "api/ops.h"
#include "files/disk.h"
#include "files/fits.h"
#include "files/header.h"
#include "files/layers.h"
#include "files/manifest.h"
#include "files/packing.h"
#include "files/text.h"
#include "workflow/replace.h"

namespace baraquant {
namespace files {
namespace {

constexpr const char* kLoad = "baraquant.load_";

using Modules = std::map<std::string, std::shared_ptr<torch::nn::Module>>;

at::Tensor read_tensor(const InputFile& file, const Header& header, const Entry& entry) {
  at::Tensor tensor = at::empty(entry.layout.shape, entry.layout.dtype);
  const size_t size = tensor.nbytes();
  if (size > 0 &&
      file.read(header.data_start + entry.begin, tensor.mutable_data_ptr(), size) < size) {
    fail("expected a whole file, but it was cut off while it was read");
  }
  return tensor;
}

// Read all tensors, shared ones as the same object, and check the checksum.
Tensors read_tensors(const InputFile& file, const Header& header, const Manifest& manifest) {
  Tensors stored;
  for (const auto& [name, entry] : header.tensors) {
    stored[name] = read_tensor(file, header, entry);
  }
  if (!is_whole(manifest.text, stored)) {
    fail("expected the data that was saved, but its checksum differs: damaged");
  }
  for (const auto& [path, module] : manifest.modules) {
    const int64_t bits = module.weight_bits();
    for (const auto& [name, shape] : module.packed) {
      const std::string full = c10::str(path, ".", name);
      const auto found = stored.find(full);
      if (found == stored.end()) continue;
      within(full + ": ", [&, &shape = shape] {
        check_spare_bits(found->second, bits, c10::multiply_integers(shape));
      });
      found->second = unpack(found->second, bits, shape);
      if (name == "packed") found->second = pack_int4(found->second);
    }
  }
  for (const auto& [alias, name] : manifest.shared_tensors) stored[alias] = stored.at(name);
  return stored;
}

// Where a tensor goes whose place in the model is on a device.
at::Device filled(const at::Device& device) { return device.is_meta() ? at::kCPU : device; }

// Move the tensors to the devices of those that they replace, shared ones as the same object.
void move_tensors(const torch::nn::Module& model, const Inside& is_inside, Tensors& values) {
  std::map<std::string, at::Device> devices, device_of;  // the second: of a layer's first tensor
  for (const auto& [name, tensor] : state_of(model)) {
    devices.emplace(name, filled(tensor.device()));
    for (const std::string& path : is_inside.layers_of(name)) {
      device_of.emplace(path, filled(tensor.device()));
    }
  }
  const auto device_for = [&](const std::string& name) {
    const auto own = devices.find(name);
    if (own != devices.end()) return own->second;
    at::Device device = at::kCPU;
    for (const std::string& path : is_inside.layers_of(name)) {
      const auto found = device_of.find(path);
      if (found != device_of.end()) device = found->second;  // of the innermost
    }
    return device;
  };
  const Tensors originals = values;
  std::map<std::pair<const void*, std::string>, at::Tensor> moved;
  for (const auto& [name, tensor] : originals) {
    const at::Device device = device_for(name);
    at::Tensor& place = moved[{tensor.unsafeGetTensorImpl(), device.str()}];
    if (!place.defined()) place = tensor.to(device);
    values[name] = place;
  }
}

// Build the modules with their data.
Modules build_modules(const Paths& paths, const Manifest& manifest, const Tensors& values) {
  Modules modules;
  for (const auto& [path, stored] : manifest.modules) {
    const auto module = modules[path] = build_module(path, stored, values);
    within(path + ": ", [&, &stored = stored] { check_values(*stored.form, *module); });
    module->train(paths.find(path)->is_training());
  }
  for (const std::string& path : manifest.channels_last) {
    dynamic_cast<nn::QuantizedConv2dImpl&>(*modules.at(path)).channels_last = true;
  }
  return modules;
}

// What a file changes in a model.
struct Changes {
  Modules modules;
  std::vector<std::pair<at::Tensor, at::Tensor>> values;  // the model's tensors, and their values
};

// Read a file, and check everything.
Changes read(torch::nn::Module& model, const InputFile& file) {
  const Header header = read_header(file);
  const Manifest manifest = parse_manifest(header.configuration);
  const Tensors metas = meta_tensors(header.tensors, manifest);
  const Paths paths(model);
  check_fits(model, paths, manifest, metas);
  Tensors values = read_tensors(file, header, manifest);
  const Inside is_inside(manifest);
  move_tensors(model, is_inside, values);
  Changes changes{build_modules(paths, manifest, values), {}};
  for (const auto& [name, tensor] : state_of(model)) {
    if (is_inside(name)) continue;
    const auto own = values.find(name);
    const at::Tensor value =
        own != values.end() ? own->second : values.at(manifest.constants.at(name));
    // A constant of another shape stays what the model has computed, as in Python.
    if (value.sizes() != tensor.sizes() || value.scalar_type() != tensor.scalar_type()) continue;
    if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
      fail(name, ": expected a tensor whose values have a place each, but they overlap");
    }
    changes.values.emplace_back(tensor, value);
  }
  return changes;
}

Changes read_file(torch::nn::Module& model, const std::filesystem::path& path) {
  const InputFile file(path);
  return within(c10::str(kLoad, ": ", path.filename().string(), ": "),
                [&] { return read(model, file); });
}

}  // namespace
}  // namespace files

void load_(torch::nn::Module& model, const std::filesystem::path& path) {
  workflow::Transaction change;
  files::Changes changes = files::read_file(model, path);
  const std::vector<workflow::Place> places = workflow::places_of(model);
  workflow::Swaps swaps;
  for (const workflow::Place& place : places) {
    const auto found = changes.modules.find(place.path);
    if (found != changes.modules.end()) swaps[place.module] = found->second;
  }
  workflow::check_owners(files::kLoad, places, swaps);
  for (auto& [tensor, value] : changes.values) {
    change.write(tensor, value);
    value.reset();  // the transaction holds the old values instead
  }
  workflow::swap(change, places, swaps);
  change.finish();
}

}  // namespace baraquant
