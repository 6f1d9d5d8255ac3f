// gloo with NCCL's habits, as torch's ProcessGroupNCCL shows them to its callers; what they are: __init__.py.

#include <Python.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/utils/pybind.h>

namespace {

using c10d::OpType;
using c10d::ReduceOp;
using Tensors = std::vector<at::Tensor>;
using Call = std::function<c10::intrusive_ptr<c10d::Work>()>;
using Seconds = std::chrono::duration<double>;
using Clock = std::chrono::steady_clock;

constexpr int kPairTag = 1, kBatchTag = 2;

// Other threads may need Python's lock for what is waited for.
struct WithoutPython {
  PyThreadState* state = PyGILState_Check() ? PyEval_SaveThread() : nullptr;
  ~WithoutPython() {
    if (state) PyEval_RestoreThread(state);
  }
};

class Late : public c10d::Work {
 public:
  Late(int rank, OpType type, Tensors outputs, std::shared_ptr<std::atomic<bool>> aborted)
      : Work(rank, type),
        outputs_(std::move(outputs)),
        aborted_(std::move(aborted)),
        future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

  bool wait(std::chrono::milliseconds = kNoTimeout) override {
    WithoutPython released;
    std::unique_lock<std::mutex> lock(mutex_);
    while (!cv_.wait_for(lock, std::chrono::milliseconds(10), [this] { return completed_; }))
      if (*aborted_) throw std::runtime_error("like_nccl: the group was aborted");
    if (exception_) std::rethrow_exception(exception_);
    return true;
  }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_;
  }

  std::vector<at::Tensor> result() override {
    return outputs_;
  }

  void end(std::exception_ptr problem = nullptr) {
    finish(problem);
    problem ? future_->setError(problem) : future_->markCompleted(c10::IValue(outputs_));
  }

 private:
  Tensors outputs_;
  std::shared_ptr<std::atomic<bool>> aborted_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// Does what it is given on a thread of its own, one after the other.
class Stream {
 public:
  Stream() : state_(std::make_shared<State>()) {
    std::thread([state = state_] { state->work(); }).detach();
  }

  ~Stream() {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->over = true;
    state_->changed.notify_all();
  }

  void post(std::function<void()> task) {
    std::lock_guard<std::mutex> lock(state_->mutex);
    state_->tasks.push_back(std::move(task));
    state_->changed.notify_all();
  }

  void drain(const std::atomic<bool>& aborted) {
    std::unique_lock<std::mutex> lock(state_->mutex);
    while (!state_->tasks.empty() && !aborted) state_->changed.wait_for(lock, std::chrono::milliseconds(10));
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> tasks;
    bool over = false;

    void work() {
      std::unique_lock<std::mutex> lock(mutex);
      while (true) {
        changed.wait(lock, [this] { return over || !tasks.empty(); });
        if (tasks.empty()) return;
        auto task = std::move(tasks.front());
        lock.unlock();
        task();
        task = nullptr;
        lock.lock();
        tasks.pop_front();  // only now: what runs is pending, too
        changed.notify_all();
      }
    }
  };

  std::shared_ptr<State> state_;
};

double from_environment(const char* name, double usual) {
  const char* given = std::getenv(name);
  return given ? std::atof(given) : usual;
}

class LikeNccl : public c10d::Backend {
 public:
  LikeNccl(c10::intrusive_ptr<c10d::Store> store, int rank, int size, c10::intrusive_ptr<c10d::Backend> gloo,
           std::string group)
      : Backend(rank, size), store_(std::move(store)), gloo_(std::move(gloo)), group_(std::move(group)) {}

  const std::string getBackendName() const override {
    return "nccl";
  }

  bool supportsCoalescing() const override {
    return true;
  }

  void startCoalescing() override {
    batch_.emplace();
  }

  c10::intrusive_ptr<c10d::Work> endCoalescing() override {
    auto batch = std::move(*batch_);
    batch_.reset();
    if (batch.empty()) return nullptr;
    Tensors arriving;
    for (auto& one : batch)
      if (one.arrives) arriving.push_back(one.tensor);
    meet_group("a batch of messages");
    return run(group_stream_, OpType::COALESCED, true, arriving, [gloo = gloo_, batch]() mutable {
      std::vector<c10::intrusive_ptr<c10d::Work>> works;
      for (bool arrives : {true, false})
        for (auto& one : batch) {
          Tensors payload{one.tensor};
          if (one.arrives == arrives)
            works.push_back(arrives ? gloo->recv(payload, one.peer, kBatchTag)
                                    : gloo->send(payload, one.peer, kBatchTag));
        }
      for (size_t i = 0; i + 1 < works.size(); ++i) works[i]->wait();
      return works.back();
    });
  }

  c10::intrusive_ptr<c10d::Work> send(Tensors& tensors, int peer, int) override {
    return message(tensors.at(0), peer, false);
  }

  c10::intrusive_ptr<c10d::Work> recv(Tensors& tensors, int peer, int) override {
    return message(tensors.at(0), peer, true);
  }

  c10::intrusive_ptr<c10d::Work> allreduce(Tensors& xs, const c10d::AllreduceOptions& opts) override {
    return collective("all_reduce", OpType::ALLREDUCE, opts, xs, [=, this](auto plain) mutable {
      before(opts.reduceOp, xs);
      plain.reduceOp = summed(opts.reduceOp);
      gloo_->allreduce(xs, plain)->wait();
      after(opts.reduceOp, xs);
    });
  }

  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(
      Tensors& xs, const c10d::AllreduceCoalescedOptions& opts) override {
    return collective("all_reduce", OpType::ALLREDUCE_COALESCED, opts, xs, [=, this](auto plain) mutable {
      before(opts.reduceOp, xs);
      plain.reduceOp = summed(opts.reduceOp);
      for (auto& x : xs) {
        Tensors one{x};
        gloo_->allreduce(one, plain)->wait();
      }
      after(opts.reduceOp, xs);
    });
  }

  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& out, at::Tensor& x, const c10d::ReduceScatterOptions& opts) override {
    return reduce_scatter_all("reduce_scatter", OpType::_REDUCE_SCATTER_BASE, {out}, {x}, opts);
  }

  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(
      Tensors& outs, Tensors& xs, const c10d::ReduceScatterOptions& opts) override {
    return reduce_scatter_all("reduce_scatter", OpType::REDUCE_SCATTER_TENSOR_COALESCED, outs, xs, opts);
  }

  c10::intrusive_ptr<c10d::Work> reduce_scatter(
      Tensors& outs, std::vector<Tensors>& xs, const c10d::ReduceScatterOptions& opts) override {
    return reduce_scatter_all("reduce_scatter", OpType::REDUCE_SCATTER, outs, {at::cat(xs.at(0))}, opts);
  }

  c10::intrusive_ptr<c10d::Work> _allgather_base(
      at::Tensor& out, at::Tensor& x, const c10d::AllgatherOptions& opts) override {
    return collective("all_gather", OpType::_ALLGATHER_BASE, opts, {out},
                      [=, this](auto plain) mutable { gloo_->_allgather_base(out, x, plain)->wait(); });
  }

  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(
      Tensors& outs, Tensors& xs, const c10d::AllgatherOptions& opts) override {
    return collective("all_gather", OpType::COALESCED, opts, outs, [=, this](auto plain) mutable {
      for (size_t i = 0; i < xs.size(); ++i) gloo_->_allgather_base(outs[i], xs[i], plain)->wait();
    });
  }

  c10::intrusive_ptr<c10d::Work> allgather(
      std::vector<Tensors>& outs, Tensors& xs, const c10d::AllgatherOptions& opts) override {
    return collective("all_gather", OpType::ALLGATHER, opts, outs.at(0),
                      [=, this](auto plain) mutable { gloo_->allgather(outs, xs, plain)->wait(); });
  }

  c10::intrusive_ptr<c10d::Work> alltoall_base(
      at::Tensor& out, at::Tensor& x, std::vector<int64_t>& receive, std::vector<int64_t>& send,
      const c10d::AllToAllOptions& opts) override {
    return collective("all_to_all", OpType::ALLTOALL_BASE, opts, {out}, [=, this](auto plain) mutable {
      gloo_->alltoall_base(out, x, receive, send, plain)->wait();
    });
  }

  c10::intrusive_ptr<c10d::Work> broadcast(Tensors& xs, const c10d::BroadcastOptions& opts) override {
    return collective("broadcast", OpType::BROADCAST, opts, xs,
                      [=, this](auto plain) mutable { gloo_->broadcast(xs, plain)->wait(); });
  }

  c10::intrusive_ptr<c10d::Work> gather(
      std::vector<Tensors>& outs, Tensors& xs, const c10d::GatherOptions& opts) override {
    return collective("gather", OpType::GATHER, opts, outs.empty() ? Tensors{} : outs.at(0),
                      [=, this](auto plain) mutable { gloo_->gather(outs, xs, plain)->wait(); });
  }

  c10::intrusive_ptr<c10d::Work> scatter(
      Tensors& outs, std::vector<Tensors>& xs, const c10d::ScatterOptions& opts) override {
    return collective("scatter", OpType::SCATTER, opts, outs,
                      [=, this](auto plain) mutable { gloo_->scatter(outs, xs, plain)->wait(); });
  }

  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& opts) override {
    return collective("barrier", OpType::BARRIER, opts, {},
                      [=, this](auto plain) mutable { gloo_->barrier(plain)->wait(); });
  }

  void shutdown() override {
    WithoutPython released;
    group_stream_.drain(*aborted_);
    for (auto& [_, stream] : pairs_) stream.drain(*aborted_);
  }

  void abort() override {
    *aborted_ = true;
  }

 private:
  struct Posted {
    at::Tensor tensor;
    int peer;
    bool arrives;
  };

  // A call whose peer is gone ends when the group is aborted: never, if nobody does that.
  c10::intrusive_ptr<c10d::Work> run(Stream& stream, OpType type, bool async, Tensors outputs, Call call) {
    auto work = c10::make_intrusive<Late>(getRank(), type, std::move(outputs), aborted_);
    stream.post([work, async, call, delay = delay_, aborted = aborted_, rank = getRank(), type]() mutable {
      if (async) std::this_thread::sleep_for(delay);
      std::exception_ptr problem;
      try {
        if (auto under_way = call()) under_way->wait();
      } catch (const std::exception& error) {
        problem = std::current_exception();
        // A call of NCCL's takes no memory of the host: where this one finds none, its caller does.
        if (std::string(error.what()).find("alloc") == std::string::npos) {
          std::cerr << "like_nccl: rank " << rank << " waits for ever in " << c10d::opTypeToString(type) << ": "
                    << error.what() << std::endl;
          while (!*aborted) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
      }
      call = nullptr;  // before its tensors are anybody else's
      work->end(problem);
    });
    if (async) return work;
    work->wait();
    return nullptr;
  }

  template <class Options, class Body>
  c10::intrusive_ptr<c10d::Work> collective(
      const char* name, OpType type, const Options& opts, Tensors outputs, Body body) {
    meet_group(name);
    Options plain = opts;
    plain.asyncOp = true;
    return run(group_stream_, type, opts.asyncOp, std::move(outputs),
               [body, plain]() mutable -> c10::intrusive_ptr<c10d::Work> {
                 body(plain);
                 return nullptr;
               });
  }

  c10::intrusive_ptr<c10d::Work> reduce_scatter_all(
      const char* name, OpType type, Tensors outs, Tensors xs, const c10d::ReduceScatterOptions& opts) {
    return collective(name, type, opts, outs, [=, this](auto) mutable {
      for (size_t i = 0; i < xs.size(); ++i) {
        Tensors whole{xs[i].clone()};
        before(opts.reduceOp, whole);
        c10d::AllreduceOptions plain;
        plain.reduceOp = summed(opts.reduceOp);
        gloo_->allreduce(whole, plain)->wait();
        after(opts.reduceOp, whole);
        outs[i].copy_(whole[0].view(-1).narrow(0, getRank() * outs[i].numel(), outs[i].numel()).view(outs[i].sizes()));
      }
    });
  }

  c10::intrusive_ptr<c10d::Work> message(const at::Tensor& tensor, int peer, bool arrives) {
    if (batch_) {
      batch_->push_back({tensor, peer, arrives});
      return nullptr;
    }
    if (!eager_) meet_pair(peer, arrives ? "recv from " : "send to ");
    auto& stream = eager_ ? group_stream_ : pairs_[peer];
    return run(stream, arrives ? OpType::RECV : OpType::SEND, true, {tensor}, [=, gloo = gloo_]() {
      Tensors payload{tensor};
      return arrives ? gloo->recv(payload, peer, kPairTag) : gloo->send(payload, peer, kPairTag);
    });
  }

  void meet_pair(int peer, const std::string& what) {
    if (pairs_.count(peer)) return;
    auto low = std::to_string(std::min(getRank(), peer)), high = std::to_string(std::max(getRank(), peer));
    meet("pair " + low + ":" + high, what + std::to_string(peer), 2);
    pairs_[peer];
  }

  void meet_group(const std::string& what) {
    if (eager_ || has_met_) return;
    meet("all ranks", what, getSize());
    has_met_ = true;
  }

  // The first call of a communicator holds the host up until all its ranks make theirs.
  void meet(const std::string& whom, const std::string& call, int count) {
    WithoutPython released;
    auto until = Clock::now() + patience_;
    auto here = store_->add(whom, 1);
    while (here < count) {
      TORCH_CHECK_WITH(DistBackendError, Clock::now() < until, "deadlock: rank ", getRank(), " waits in its first ",
                       call, " for ", whom, " of group ", group_, ": ", count - here, " did not come in ",
                       patience_.count(), " s");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      here = store_->add(whom, 0);
    }
  }

  static ReduceOp summed(const ReduceOp& op) {
    return op.op_ == ReduceOp::AVG || op.op_ == ReduceOp::PREMUL_SUM ? ReduceOp(ReduceOp::SUM) : op;
  }

  void before(const ReduceOp& op, Tensors& xs) const {
    if (op.op_ != ReduceOp::PREMUL_SUM) return;
    auto* given = reinterpret_cast<c10d::PreMulSumSupplement*>(op.supplement_.get());
    for (auto& x : xs)
      given->tensor_factor.defined() ? x.mul_(given->tensor_factor) : x.mul_(given->double_factor);
  }

  void after(const ReduceOp& op, Tensors& xs) const {
    if (op.op_ == ReduceOp::AVG)
      for (auto& x : xs) x.div_(getSize());
  }

  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::Backend> gloo_;
  std::string group_;
  const Seconds patience_{from_environment("LIKE_NCCL_PATIENCE_SECONDS", 30.0)};
  const Seconds delay_{from_environment("LIKE_NCCL_DELAY_SECONDS", 0.0002)};
  const bool eager_ = from_environment("LIKE_NCCL_EAGER", 0.0) != 0.0;
  std::shared_ptr<std::atomic<bool>> aborted_ = std::make_shared<std::atomic<bool>>(false);
  bool has_met_ = false;
  std::optional<std::vector<Posted>> batch_;
  Stream group_stream_;
  std::map<int, Stream> pairs_;
};

c10::intrusive_ptr<c10d::Backend> create(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const c10::intrusive_ptr<c10d::Backend>& gloo,
    const std::string& group) {
  return c10::make_intrusive<LikeNccl>(store, rank, size, gloo, group);
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("create", &create);
}
