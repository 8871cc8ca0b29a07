// One CTA turns the list of one line, whose columns ascend, into bits in shared memory: what is
// listed, with FULL what is full, and the entries before each word, counted over all lines.
//
// Triton would look for each word's entries by bisection, which waits for memory ten times over.

struct Lines {
  const long long* row_ptr;
  const int* col;
  const int* tile_id;
  int* listed;
  int* full;
  int* before;
  int words;
};

extern "C" __global__ void ranks(const Lines in) {
  extern __shared__ int bits[];  // words, and with FULL as many again
  long long line = blockIdx.x, start = in.row_ptr[line], stop = in.row_ptr[line + 1];
  int words = in.words;
  for (int i = threadIdx.x; i < words * (1 + FULL); i += blockDim.x) bits[i] = 0;
  __syncthreads();
  for (long long entry = start + threadIdx.x; entry < stop; entry += blockDim.x) {
    int column = in.col[entry], bit = static_cast<int>(1u << (column & 31));
    atomicOr(bits + (column >> 5), bit);
    if (FULL && in.tile_id[entry] < 0) atomicOr(bits + words + (column >> 5), bit);
  }
  __syncthreads();
  if (FULL) {
    for (int i = threadIdx.x; i < words; i += blockDim.x) in.full[line * words + i] = bits[words + i];
  }
  if (threadIdx.x >= 32) return;
  int carry = static_cast<int>(start);
  for (int first = 0; first < words; first += 32) {
    int at = first + threadIdx.x, word = at < words ? bits[at] : 0;
    int own = __popc(word), total = own;
    for (int step = 1; step < 32; step *= 2) {
      int other = __shfl_up_sync(0xffffffffu, total, step);
      if (threadIdx.x >= step) total += other;
    }
    if (at < words) {
      in.listed[line * words + at] = word;
      in.before[line * words + at] = carry + total - own;
    }
    carry += __shfl_sync(0xffffffffu, total, 31);
  }
}
