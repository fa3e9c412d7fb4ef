/* What libnanscan_cuda offers: scans of device memory whose records arrive in a ring that the host reads when it likes.
 *
 * Plain C on raw pointers. The library knows no torch and brings its own CUDA runtime, so one build serves every torch;
 * whoever loads it needs neither CUDA's headers nor its libraries.
 *
 * Every call returns 0 or a cudaError code (nanscan_cuda_error words it) and leaves nothing half done when it fails: no
 * launch, no record, no counter moved. Calls on one ring may come from any thread. None of them but nanscan_cuda_open,
 * nanscan_cuda_close and nanscan_cuda_flush waits for the device, allocates memory, or does anything that a stream
 * capture forbids.
 */
#pragma once

#include <stdint.h>

#if defined(__GNUC__)
#define NANSCAN_CUDA_API __attribute__((visibility("default")))
#else
#define NANSCAN_CUDA_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum {
  NANSCAN_CUDA_ABI = 1,
  NANSCAN_MAX_DIMS = 16,
  NANSCAN_TENSOR_CONJ = 1, /* torch's lazy conjugate bit: the memory holds the conjugate of what the tensor says */
  NANSCAN_TENSOR_NEG = 2   /* torch's lazy negative bit */
};

/* The 128 bytes of struct Record in record/record.h. */
typedef struct nanscan_record nanscan_record;

typedef struct nanscan_tensor {
  const void* data; /* device memory; aligned to one part of an element at least */
  int64_t numel;    /* may be 0 */
  int32_t dtype;    /* enum DType of record/record.h */
  int32_t n_dims;   /* at most NANSCAN_MAX_DIMS, or the tensor is refused */
  int64_t sizes[NANSCAN_MAX_DIMS];
  int64_t strides[NANSCAN_MAX_DIMS]; /* elements; not negative */
  int32_t flags;                     /* NANSCAN_TENSOR_* */
} nanscan_tensor;

typedef struct nanscan_ring nanscan_ring;

NANSCAN_CUDA_API int nanscan_cuda_abi(void);
NANSCAN_CUDA_API const char* nanscan_cuda_error(int code);

/* A ring of `capacity` records (rounded up to a power of two) on a device. Takes all memory, and loads every kernel:
 * nothing of that may happen later, inside a capture. */
NANSCAN_CUDA_API int nanscan_cuda_open(int device, uint32_t capacity, nanscan_ring** out);
/* Waits for the device. Graphs that captured launches of this ring must not be replayed afterwards. */
NANSCAN_CUDA_API int nanscan_cuda_close(nanscan_ring* ring);

/* One tensor, one launch, one record. `stream` is a cudaStream_t. The record keeps the header's fields, takes dtype,
 * statistics and kFlagBad from the scan. A launch captured into a graph writes one record per replay: it carries
 * kFlagReplay, and its step is the header's plus the number of replays before it. */
NANSCAN_CUDA_API int nanscan_cuda_scan(nanscan_ring* ring, const nanscan_tensor* tensor, const nanscan_record* header,
                                       void* stream);

/* [n] tensors, [n] headers, [n] records. One copy, and one launch per dtype among them (gradients have one, seldom
 * two); above 4096 tensors, or some 80,000 blocks, as many again. When so many tables are under way that their memory
 * is used up, each tensor gets a launch of its own instead. */
NANSCAN_CUDA_API int nanscan_cuda_scan_many(nanscan_ring* ring, const nanscan_tensor* tensors,
                                            const nanscan_record* headers, uint32_t n, void* stream);

/* Finished records in the order of their stamps, and the stamps: 1, 2, 3 ... in the order in which the device finished
 * them, without holes. At most max of them; their slots are free then. Plain host reads. */
NANSCAN_CUDA_API int nanscan_cuda_poll(nanscan_ring* ring, nanscan_record* out, uint64_t* stamps, uint32_t max,
                                       uint32_t* n);

/* Waits until everything launched on the device so far is done. For people, not for hooks: it synchronises, and while
 * a stream of the device captures it fails (and CUDA ends that capture). */
NANSCAN_CUDA_API int nanscan_cuda_flush(nanscan_ring* ring);

/* launched: records asked for outside captures; finished: how many of those are done, dropped ones included; dropped:
 * records that found the ring full, replayed ones included. Plain host reads. */
NANSCAN_CUDA_API int nanscan_cuda_counters(nanscan_ring* ring, uint64_t* launched, uint64_t* finished,
                                           uint64_t* dropped);

NANSCAN_CUDA_API int nanscan_cuda_capturing(void* stream, int* yes);

#ifdef __cplusplus
}
#endif
