// What a CUDA build of torch brings and a CPU build lacks, as far as tensors without values need it: a device guard,
// so that autograd can work for "cuda:0", and hooks, so that a CUDA generator can be made. Nothing is computed here.
#include <ATen/core/Generator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

constexpr c10::DeviceIndex kDevices = 8;
const c10::Device kFirst{c10::kCUDA, 0};
const c10::Stream kDefault{c10::Stream::DEFAULT, kFirst};

struct Guard final : public c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  c10::Device exchangeDevice(c10::Device) const override { return kFirst; }
  c10::Device getDevice() const override { return kFirst; }
  c10::Stream getStream(c10::Device) const noexcept override { return kDefault; }
  c10::Stream getNewStream(c10::Device, int) const override { return kDefault; }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return kDefault; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};

// Knows its device and its seed: whoever draws from it draws numbers that nobody sees.
struct Numbers final : public c10::GeneratorImpl {
  Numbers() : c10::GeneratorImpl(kFirst, c10::DispatchKeySet(c10::DispatchKey::CUDA)) {}
  void set_current_seed(uint64_t seed) override { seed_ = seed; }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override { return seed_; }
  void set_state(const c10::TensorImpl&) override {}
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    TORCH_CHECK(false, "this generator has no state");
  }
  Numbers* clone_impl() const override { return new Numbers(); }

 private:
  uint64_t seed_ = c10::default_rng_seed_val;
};

}  // namespace

// The registry finds hooks by this name.
struct CUDAHooks final : public at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<Numbers>(); }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard)
namespace at {
REGISTER_CUDA_HOOKS(CUDAHooks)
}
