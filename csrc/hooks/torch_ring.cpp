#include "hooks/torch_ring.h"

#include <ATen/Functions.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "hooks/kernel_call.h"

namespace nanscan {
namespace {

// What our operators see of the thread's state: no autograd, no autocast, no modes and no functorch level, so that they mean
// the same wherever the hook runs; and nobody observes them, this tool included.
class Quiet {
 public:
  explicit Quiet(c10::Device device)
      : keys_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
              c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::default_excluded_set),
        device_(device) {}

 private:
  c10::impl::ForceDispatchKeyGuard keys_;
  at::DisableRecordFunctionGuard record_;
  c10::DeviceGuard device_;
};

at::Tensor borrow(const nanscan_tensor& t, c10::Device device) {
  const auto options = at::TensorOptions().device(device).dtype(scalar_type(static_cast<DType>(t.dtype)));
  at::Tensor x = at::for_blob(const_cast<void*>(t.data), c10::IntArrayRef(t.sizes, static_cast<size_t>(t.n_dims)))
                     .strides(c10::IntArrayRef(t.strides, static_cast<size_t>(t.n_dims)))
                     .options(options)
                     .target_device(device)
                     .make_tensor();
  if (t.flags & NANSCAN_TENSOR_CONJ) x._set_conj(true);
  if (t.flags & NANSCAN_TENSOR_NEG) x._set_neg(true);
  return x;
}

}  // namespace

TorchRing::TorchRing(c10::Device device, size_t capacity) : device_(device), n_rows_(capacity + kMoreRows) {
  const Quiet quiet(device_);
  auto options = at::TensorOptions().dtype(at::kLong);
  if (!stands_in()) options = options.pinned_memory(true);
  pinned_ = at::zeros({static_cast<int64_t>(n_rows_), kRowWords}, options);
}

c10::Stream TorchRing::stream() const { return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_); }

void TorchRing::scan(const nanscan_tensor* tensors, const Record* headers, uint32_t n, void* stream) {
  const Quiet quiet(device_);
  std::vector<at::Tensor> parts;
  std::vector<Row> rows;
  for (uint32_t i = 0; i < n; ++i) {
    for_pieces(borrow(tensors[i], device_), kernel().ready(), [&](const at::Tensor& part, Piece piece) {
      parts.push_back(part);
      rows.push_back({i, piece});
    });
  }
  Launch* const taken = take(headers, n, std::move(rows), stream);
  if (taken == nullptr) return;
  try {
    launch(*taken, parts);
  } catch (...) {
    const std::lock_guard<std::mutex> lock(mutex_);
    taken->over = true;
    forget();
    throw;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  taken->launched = true;
  n_launched_ += n;
}

void TorchRing::launch(Launch& launch, const std::vector<at::Tensor>& parts) {
  const auto n = static_cast<int64_t>(parts.size());
  const at::Tensor results = at::empty({n, kRowWords}, at::TensorOptions().device(device_).dtype(at::kLong));
  for (int64_t i = 0; i < n; ++i) {
    Row& row = launch.rows[static_cast<size_t>(i)];
    const DType dtype = static_cast<DType>(launch.headers[row.of].dtype);
    const at::Tensor part = readable(parts[static_cast<size_t>(i)]);
    if (kernel().launch(part, results[i], dtype)) row.by = RowOf::kKernel;
    else reduce(part, dtype, results[i]);
  }
  pinned_.narrow(0, static_cast<int64_t>(launch.first), n).copy_(results, /*non_blocking=*/true);
  if (stands_in()) return;
  launch.event = spare_event();
  launch.event->record(stream());
}

uint32_t TorchRing::poll(Record* out, uint64_t* stamps, uint32_t max) {
  const bool captures = this->captures();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!captures) collect();
  uint32_t n = 0;
  for (; n < max && !ready_.empty(); ++n, ready_.pop_front()) {
    out[n] = ready_.front();
    stamps[n] = ++n_polled_;
  }
  return n;
}

void TorchRing::flush() {
  if (captures()) return;
  std::vector<std::shared_ptr<c10::Event>> events;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Launch& launch : launches_) {
      launch.released = true;
      if (launch.launched && launch.event) events.push_back(launch.event);
    }
  }
  for (const auto& event : events) event->synchronize();
}

void TorchRing::counters(uint64_t& launched, uint64_t& finished, uint64_t& dropped) {
  const std::lock_guard<std::mutex> lock(mutex_);
  launched = n_launched_;
  finished = n_polled_;
  dropped = n_dropped_;
}

uint32_t TorchRing::release(uint32_t n) {
  const std::lock_guard<std::mutex> lock(mutex_);
  uint32_t done = 0;
  for (Launch& launch : launches_) {
    if (done == n) break;
    if (launch.launched && !launch.released) ++done;
    launch.released = launch.released || launch.launched;
  }
  return done;
}

// Room for the rows in front of all that are in use, in one piece; without it the records are dropped, and counted.
TorchRing::Launch* TorchRing::take(const Record* headers, uint32_t n, std::vector<Row> rows, void* stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const size_t wanted = rows.size();
  const size_t at = head_ % n_rows_;
  const size_t skipped = at + wanted > n_rows_ ? n_rows_ - at : 0;
  if (head_ - tail_ + skipped + wanted > n_rows_) {
    for (uint32_t i = 0; i < n; ++i) {
      Record nothing{};  // frees the place that the session keeps; of no kind that anybody reads
      nothing.seq = headers[i].seq;
      nothing.site = ~0u;
      nothing.flags = kFlagLink;
      ready_.push_back(nothing);
    }
    n_launched_ += n;
    n_dropped_ += n;
    return nullptr;
  }
  head_ += skipped + wanted;
  Launch launch;
  launch.headers.assign(headers, headers + n);
  launch.rows = std::move(rows);
  launch.first = (at + skipped) % n_rows_;
  launch.skipped = skipped;
  launch.stream = stream;
  launches_.push_back(std::move(launch));
  return &launches_.back();
}

bool TorchRing::is_there(const Launch& launch) const {
  if (!launch.launched) return false;
  return stands_in() ? launch.released : launch.event->query();
}

void TorchRing::collect() {
  std::vector<void*> behind;  // streams that have not got further
  for (Launch& launch : launches_) {
    if (launch.over || std::find(behind.begin(), behind.end(), launch.stream) != behind.end()) continue;
    if (!is_there(launch)) {
      behind.push_back(launch.stream);
      continue;
    }
    finish(launch);
  }
  forget();
}

void TorchRing::finish(Launch& launch) {
  const int64_t* rows = pinned_.const_data_ptr<int64_t>() + launch.first * kRowWords;
  size_t i = 0;
  for (size_t of = 0; of < launch.headers.size(); ++of) {
    Record& record = launch.headers[of];
    const DType dtype = static_cast<DType>(record.dtype);
    Moments whole;
    for (; i < launch.rows.size() && launch.rows[i].of == of; ++i) {
      combine(whole, moments_of_row(rows + i * kRowWords, launch.rows[i].by, dtype, launch.rows[i].piece));
    }
    store(whole, dtype, record);
    ready_.push_back(record);
  }
  launch.over = true;
}

void TorchRing::forget() {
  while (!launches_.empty() && launches_.front().over) {
    Launch& launch = launches_.front();
    tail_ += launch.skipped + launch.rows.size();
    if (launch.event) spare_.push_back(std::move(launch.event));
    launches_.pop_front();
  }
}

std::shared_ptr<c10::Event> TorchRing::spare_event() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!spare_.empty()) {
      auto event = std::move(spare_.back());
      spare_.pop_back();
      return event;
    }
  }
  return std::make_shared<c10::Event>(device_.type());
}

}  // namespace nanscan
