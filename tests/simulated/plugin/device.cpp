// A device of torch, `simulated`, whose kernels are the CPU's and whose memory the CPU cannot read.
//
// Every operation runs on CPU tensors that lie on the device's memory, with the same sizes and strides. So a run on this
// device gives the CPU's bits, and every step on the way that would fail on a GPU fails here too: an operation on
// tensors of two devices, a CPU generator for a draw on the device, a tensor given to numpy, an address that is read.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <unordered_map>
#include <vector>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::StorageImpl;
using c10::Stream;
using torch::jit::Stack;

constexpr auto kType = DeviceType::PrivateUse1;
const Device kDevice(kType, 0);

// -- memory -------------------------------------------------------------------------------------------------------

// An address of the device is a host address plus this: reading it on the host ends the process with SIGSEGV.
constexpr uintptr_t kOffset = uintptr_t{1} << 56;

std::atomic<int64_t> allocated{0};
std::atomic<int64_t> peak{0};

void* on_host(void* device) {
  return device ? reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(device) - kOffset) : nullptr;
}

void* on_device(void* host) {
  return host ? reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(host) + kOffset) : nullptr;
}

// What a block of the device's memory owns: a block of the host's memory.
struct Block {
  c10::DataPtr host;
  int64_t bytes;
};

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  allocated -= block->bytes;
  delete block;
}

c10::DataPtr as_device_memory(c10::DataPtr host, size_t bytes) {
  void* address = on_device(host.get());
  auto* block = new Block{std::move(host), static_cast<int64_t>(bytes)};
  const int64_t now = allocated += block->bytes;
  for (int64_t before = peak; before < now && !peak.compare_exchange_weak(before, now);) {
  }
  return {address, block, &free_block, kDevice};
}

struct SimulatedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    return as_device_memory(c10::GetCPUAllocator()->allocate(bytes), bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(on_host(to), on_host(const_cast<void*>(from)), bytes);
  }
};

SimulatedAllocator allocator;
REGISTER_ALLOCATOR(kType, &allocator);

// -- random numbers -----------------------------------------------------------------------------------------------

// A generator of the device, which draws the same numbers as a CPU generator with the same seed.
struct SimulatedGenerator final : c10::GeneratorImpl {
  explicit SimulatedGenerator(at::Generator cpu)
      : GeneratorImpl(kDevice, DispatchKeySet(DispatchKey::PrivateUse1)), cpu(std::move(cpu)) {}
  void set_current_seed(uint64_t seed) override {
    cpu.set_current_seed(seed);
  }
  void set_offset(uint64_t offset) override {
    cpu.set_offset(offset);
  }
  uint64_t get_offset() const override {
    return cpu.get_offset();
  }
  uint64_t current_seed() const override {
    return cpu.current_seed();
  }
  uint64_t seed() override {
    return cpu.seed();
  }
  void set_state(const c10::TensorImpl& state) override {
    cpu.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return cpu.unsafeGetGeneratorImpl()->get_state();
  }
  SimulatedGenerator* clone_impl() const override {
    return new SimulatedGenerator(cpu.clone());
  }
  static DeviceType device_type() {
    return kType;
  }
  at::Generator cpu;
};

at::Generator new_generator(uint64_t seed) {
  return at::make_generator<SimulatedGenerator>(at::detail::createCPUGenerator(seed));
}

const at::Generator& default_generator() {
  static const at::Generator generator = new_generator(c10::default_rng_seed_val);
  return generator;
}

// -- the device ---------------------------------------------------------------------------------------------------

struct SimulatedGuard final : c10::impl::NoOpDeviceGuardImpl<kType> {
  Device exchangeDevice(Device) const override {
    return kDevice;
  }
  Device getDevice() const override {
    return kDevice;
  }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.index() <= 0, "there is one simulated device, and no ", device);
  }
  Stream getStream(Device) const noexcept override {
    return Stream(Stream::DEFAULT, kDevice);
  }
  Stream getNewStream(Device, int) const override {
    return Stream(Stream::DEFAULT, kDevice);
  }
  Stream exchangeStream(Stream) const noexcept override {
    return Stream(Stream::DEFAULT, kDevice);
  }
  void synchronizeDevice(const DeviceIndex) const override {}
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, SimulatedGuard);

struct SimulatedHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(DeviceIndex) const override {
    return true;
  }
  DeviceIndex deviceCount() const override {
    return 1;
  }
  DeviceIndex getCurrentDevice() const override {
    return 0;
  }
  const at::Generator& getDefaultGenerator(DeviceIndex) const override {
    return default_generator();
  }
  at::Generator getNewGenerator(DeviceIndex) const override {
    return new_generator(c10::default_rng_seed_val);
  }
  Device getDeviceFromPtr(void*) const override {
    return kDevice;
  }
};

// -- operations ---------------------------------------------------------------------------------------------------

// The CPU tensors on the memory of the device's tensors, during one operation.
class CpuViews {
 public:
  at::Tensor of(const at::Tensor& tensor) {
    StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    at::Tensor view = view_on(cpu_storage(storage), switched(tensor.key_set(), kBackend, kCpu), tensor);
    views_.push_back({tensor, view});
    return view;
  }

  // The device's tensor of a result: an argument, a view of an argument's memory, or new memory.
  at::Tensor result(const at::Tensor& cpu) {
    if (!cpu.defined()) {
      return cpu;
    }
    for (const auto& [tensor, view] : views_) {
      if (view.is_same(cpu)) {
        return tensor;
      }
    }
    for (const auto& [tensor, view] : views_) {
      if (view.storage().is_alias_of(cpu.storage())) {
        return view_on(tensor.storage(), tensor.key_set(), cpu);
      }
    }
    at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
        device_storage(cpu.storage()), DispatchKeySet(DispatchKey::PrivateUse1), cpu.dtype());
    shape_as(made, cpu);
    views_.push_back({made, cpu});  // another result may be a view of this one
    return made;
  }

  // Give arguments the sizes and memory that the operation gave to their views: `out=` and `resize_` change them.
  void update() {
    for (const auto& [storage, view] : storages_) {
      if (on_device(view.data_ptr().get()) != storage->data_ptr().get()) {
        c10::Storage moved = device_storage(view);
        storage->set_data_ptr_noswap(moved.unsafeGetStorageImpl()->set_data_ptr(c10::DataPtr(nullptr, kDevice)));
      }
      storage->set_nbytes(view.nbytes());
    }
    for (const auto& [tensor, view] : views_) {
      c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
      if (tensor.sizes() != view.sizes() || tensor.strides() != view.strides()) {
        impl->set_sizes_and_strides(view.sizes(), view.strides(), view.storage_offset());
      }
    }
  }

 private:
  static constexpr auto kBackend = c10::BackendComponent::PrivateUse1Bit;
  static constexpr auto kCpu = c10::BackendComponent::CPUBit;

  static DispatchKeySet switched(DispatchKeySet keys, c10::BackendComponent from, c10::BackendComponent to) {
    return keys.remove_backend(from) | DispatchKeySet(to);
  }

  static at::Tensor view_on(const c10::Storage& storage, DispatchKeySet keys, const at::Tensor& like) {
    at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
        c10::TensorImpl::VIEW, c10::Storage(storage), keys, like.dtype());
    shape_as(made, like);
    return made;
  }

  static void shape_as(const at::Tensor& tensor, const at::Tensor& like) {
    c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    if (like.unsafeGetTensorImpl()->is_wrapped_number()) {
      impl->set_wrapped_number(true);
    }
  }

  c10::Storage cpu_storage(StorageImpl* storage) {
    for (const auto& [device, view] : storages_) {
      if (device == storage) {
        return view;
      }
    }
    c10::Storage view(
        c10::Storage::use_byte_size_t(),
        storage->nbytes(),
        c10::DataPtr(on_host(storage->mutable_data()), Device(DeviceType::CPU)),
        c10::GetCPUAllocator(),
        /*resizable=*/true);
    storages_.emplace_back(storage, view);
    return view;
  }

  // The memory of a CPU storage as the device's memory.
  static c10::Storage device_storage(const c10::Storage& cpu) {
    const size_t bytes = cpu.nbytes();
    auto* owner = new c10::Storage(cpu);
    c10::DataPtr host(cpu.mutable_data(), owner, [](void* one) { delete static_cast<c10::Storage*>(one); },
                      Device(DeviceType::CPU));
    return c10::Storage(
        c10::Storage::use_byte_size_t(), bytes, as_device_memory(std::move(host), bytes), &allocator, /*resizable=*/true);
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> views_;
  std::vector<std::pair<StorageImpl*, c10::Storage>> storages_;
};

void check_device(const c10::OperatorHandle& op, const at::Tensor& tensor) {
  TORCH_CHECK(
      tensor.device().type() == kType || (tensor.is_cpu() && tensor.dim() == 0),
      "Expected all tensors to be on the same device, but ", op.schema().operator_name(), " got one of shape ",
      tensor.sizes(), " on ", tensor.device(), " and found at least two devices, ", kDevice, " and ", tensor.device());
}

// Run an operation with the CPU's kernel. Tensors of other devices are refused, except numbers, as CUDA does.
void on_cpu(const c10::OperatorHandle& op, Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const size_t begin = stack->size() - arguments.size();
  CpuViews views;
  auto cpu = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) {
      return tensor;
    }
    check_device(op, tensor);
    return tensor.is_cpu() ? tensor : views.of(tensor);
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    IValue& value = (*stack)[begin + i];
    if (value.isTensor()) {
      value = cpu(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        list.push_back(cpu(tensor));
      }
      value = std::move(list);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        list.push_back(tensor ? std::optional<at::Tensor>(cpu(*tensor)) : std::nullopt);
      }
      value = std::move(list);
    } else if (value.isDevice()) {
      value = Device(DeviceType::CPU);
    } else if (value.isGenerator()) {
      const at::Generator generator = value.toGenerator();
      TORCH_CHECK(generator.device().type() == kType, "Expected a '", kDevice, "' generator for ",
                  op.schema().operator_name(), " but found one of ", generator.device());
      value = at::check_generator<SimulatedGenerator>(generator)->cpu;
    } else if (value.isNone() && arguments[i].type()->str() == "Generator?") {
      value = at::check_generator<SimulatedGenerator>(default_generator())->cpu;
    }
  }
  op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
  views.update();
  const size_t results = op.schema().returns().size();
  for (size_t i = stack->size() - results; i < stack->size(); ++i) {
    IValue& value = (*stack)[i];
    if (value.isTensor()) {
      value = views.result(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        list.push_back(views.result(tensor));
      }
      value = std::move(list);
    }
  }
}

at::Tensor empty(
    at::IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<Device>,
    std::optional<bool>,
    std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &allocator, DispatchKeySet(DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    at::IntArrayRef size,
    at::IntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<Device>,
    std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &allocator, DispatchKeySet(DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

// Copy between devices, or within this one.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  CpuViews views;
  at::Tensor target = to.is_cpu() ? to : views.of(to);
  target.copy_(from.is_cpu() ? from : views.of(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  return copy_from(from, to.resize_(from.sizes()), false);
}

at::Tensor& set_to_storage(at::Tensor& tensor, c10::Storage source) {
  const int64_t size = static_cast<int64_t>(source.nbytes() / tensor.element_size());
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(at::IntArrayRef{size}, at::IntArrayRef{1}, 0);
  return tensor;
}

at::Tensor& set_to_part(
    at::Tensor& tensor, c10::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  return tensor;
}

at::Tensor& set_to_tensor(at::Tensor& tensor, const at::Tensor& source) {
  return set_to_part(tensor, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Scalar local_scalar_dense(const at::Tensor& tensor) {
  return CpuViews().of(tensor).item();
}

// What a CPU chooses for attention without dropout.
at::Tensor attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const std::optional<at::Tensor>& mask,
    double dropout,
    bool causal,
    std::optional<double> scale,
    bool) {
  return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, causal, mask, scale));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar_dense);
  m.impl("scaled_dot_product_attention", attention);
  m.impl("set_.source_Storage", set_to_storage);
  m.impl("set_.source_Storage_storage_offset", set_to_part);
  m.impl("set_.source_Tensor", set_to_tensor);
  // These have kernels for all devices that choose by the type of the device; the CPU's choice is wanted.
  m.impl("convolution", torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
  m.impl("convolution_backward", torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
  // Where the CPU has a kernel of its own besides the one for all devices, take the CPU's.
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (name.name.rfind("aten::", 0) == 0 && op && !op->hasKernelForDispatchKey(DispatchKey::PrivateUse1) &&
        op->hasKernelForDispatchKey(DispatchKey::CPU) &&
        op->hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd)) {
      m.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
    }
  }
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("scaled_dot_product_attention", attention);
}

// Autocast's choice on a CPU, for the operations of a network and its loss.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(conv1d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv1d, padding, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv2d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv2d, padding, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(linalg_vecdot, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(baddbmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addbmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(scaled_dot_product_attention, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mse_loss, fp32)
  KERNEL_PRIVATEUSEONE(nll_loss, fp32)
  KERNEL_PRIVATEUSEONE(cross_entropy_loss, fp32)
  KERNEL_PRIVATEUSEONE(l1_loss, fp32)
  KERNEL_PRIVATEUSEONE(kl_div, fp32)
  KERNEL_PRIVATEUSEONE(binary_cross_entropy_with_logits, fp32)
  KERNEL_PRIVATEUSEONE(cosine_embedding_loss, fp32)
  KERNEL_PRIVATEUSEONE(triplet_margin_loss, fp32)
  KERNEL_PRIVATEUSEONE(prod, fp32)
  KERNEL_PRIVATEUSEONE(prod, dim_int, fp32)
  KERNEL_PRIVATEUSEONE(cdist, fp32)
  KERNEL_PRIVATEUSEONE(stack, promote)
  KERNEL_PRIVATEUSEONE(cat, promote)
  KERNEL_PRIVATEUSEONE(index_copy, promote)
}

// -- what the Python module needs ----------------------------------------------------------------------------------

TORCH_LIBRARY(raysim_simulated, m) {
  m.def("seed(int seed) -> ()", [](int64_t seed) { default_generator().unsafeGetGeneratorImpl()->set_current_seed(seed); });
  m.def("rng_state() -> Tensor", [] { return default_generator().get_state(); });
  m.def("set_rng_state(Tensor state) -> ()", [](at::Tensor state) {
    auto generator = default_generator();
    generator.set_state(state);
  });
  m.def("peak() -> int", [] { return peak.load(); });
}

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new SimulatedHooks());
  return true;
}();

} // namespace
