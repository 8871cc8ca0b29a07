// One CTA reads one top-k list into a bitmap of all keys in shared memory, then says what it holds.
//
// Compiled for: INDEX, the type of an index; BLOCK, keys a block; WORDS, words of 32 bits a block;
// CLASSIFY, whether a list is all of its line: then bits of the listed and of the full blocks come
// out, their number, and the tiles of partial blocks; else all bits, in the layout of tiles.
//
// Lists that are not one run of memory, or do not start on 16 bytes, are read lane by lane.

struct Lists {
  const INDEX* indices;
  long long batch_stride, head_stride, list_stride, lane_stride;  // in elements
  const long long* lengths;  // null: every lane holds
  long long length_strides[3];
  int heads, lists, topk;      // own heads, lists of a pattern, lanes
  int limit, keys;             // indices lie in [0, limit); keys is SK
  long long batch_origin;      // first index of batch 1: limit where indices count over batches
  int blocks, blocks_a_pass;   // of a line; of shared memory
  int lists_a_line, lines;     // lists of a Q block, Q blocks of a pattern
  int queries, tile_rows;      // SQ; rows of a tile
  int whole;                   // partial blocks are dropped and recorded
};

struct Found {
  int* bits;    // tiles [line * blocks + block, lists_a_line or tile_rows, WORDS], or null
  int* listed;  // [line, words of blocks]
  int* full;
  int* counts;  // [line]
  int* status;
};

constexpr int BAD_INDEX = 1, PARTIAL_BLOCK = 8, BAD_LENGTH = 16;
constexpr int LANES = 16 / sizeof(INDEX), AHEAD = 4;

template <int BYTES>
struct UnsignedOf {
  typedef unsigned type;
};
template <>
struct UnsignedOf<8> {
  typedef unsigned long long type;
};
typedef UnsignedOf<sizeof(INDEX)>::type Unsigned;

struct Band {
  int* bits;
  int first, stop;   // blocks of this pass
  INDEX start;       // the index of its first key
  unsigned keys;     // it holds
  INDEX origin;      // the index of key 0
  unsigned limit;    // keys there are
  unsigned spare;    // this lane's word for what is no key: written, never read
};

// An index that is not in the band: of another pass, none, or bad.
__device__ __forceinline__ bool is_bad(const Band& band, INDEX index) {
  return index < 0 ? index != static_cast<INDEX>(-1)
                   : index < band.origin || index - band.origin >= static_cast<INDEX>(band.limit);
}

// NOTE [Instructions an index]: a list of random keys is bound by instructions, and a branch around
// each atomic operation costs more of them than the operation. So every index sets a bit, and those
// that are no key set one that nobody reads, in a word of their lane's own, lest lists of -1 queue up
// at one address. Keys of a thread that are a run of consecutive ones are put down at once, as lists
// of whole blocks are.
template <int COUNT>
__device__ __forceinline__ bool put(const Band& band, const INDEX (&indices)[COUNT]) {
  Unsigned own[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    own[i] = static_cast<Unsigned>(indices[i]) - static_cast<Unsigned>(band.start);
  }
  if (BLOCK == WORDS * 32) {
    Unsigned apart = own[0] & (COUNT - 1);
#pragma unroll
    for (int i = 1; i < COUNT; ++i) apart |= own[i] ^ own[0] ^ i;
    if (apart == 0 && own[COUNT - 1] < band.keys) {
      unsigned key = static_cast<unsigned>(own[0]);
      atomicOr(band.bits + (key >> 5), static_cast<int>(((1u << COUNT) - 1) << (key & 31)));
      return false;
    }
  }
  bool odd = false;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    bool here = own[i] < band.keys;
    odd |= !here && indices[i] != static_cast<INDEX>(-1);
    unsigned key = static_cast<unsigned>(own[i]), bit = key, place = key >> 5;
    if (BLOCK != WORDS * 32) {
      bit = key % BLOCK;
      place = key / BLOCK * WORDS + (bit >> 5);
    }
    atomicOr(band.bits + (here ? place : band.spare), static_cast<int>(1u << (bit & 31)));
  }
  bool bad = false;
  if (odd) {
    for (int i = 0; i < COUNT; ++i) bad |= is_bad(band, indices[i]);
  }
  return bad;
}

__device__ __forceinline__ bool put_vector(const Band& band, const int4& loaded) {
  INDEX indices[LANES];
  memcpy(indices, &loaded, 16);
  return put(band, indices);
}

__device__ __forceinline__ bool read_list(const Band& band, const INDEX* list, long long stride,
                                          int length) {
  bool bad = false;
  int done = 0;
  if (stride == 1 && (reinterpret_cast<unsigned long long>(list) & 15) == 0) {
    const int4* vectors = reinterpret_cast<const int4*>(list);
    int count = length / LANES, step = blockDim.x, start = threadIdx.x;
    for (; start + (AHEAD - 1) * step < count; start += AHEAD * step) {
      int4 loaded[AHEAD];
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) loaded[i] = __ldcs(vectors + start + i * step);
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) bad |= put_vector(band, loaded[i]);
    }
    for (; start < count; start += step) bad |= put_vector(band, __ldcs(vectors + start));
    done = count * LANES;
  }
  for (int lane = done + threadIdx.x; lane < length; lane += blockDim.x) {
    INDEX indices[1] = {list[lane * stride]};
    bad |= put(band, indices);
  }
  return bad;
}

// A block's words move together where they make up vectors of 16 bytes.
template <bool WIDE>
struct VectorOf {
  typedef int4 type;
};
template <>
struct VectorOf<false> {
  typedef int type;
};
typedef VectorOf<WORDS % 4 == 0>::type Vector;
constexpr int VECTORS = WORDS % 4 == 0 ? WORDS / 4 : WORDS;

// Bits of a block's word that lie inside the keys.
__device__ __forceinline__ unsigned in_range(int keys, int block, int word) {
  int left = min(BLOCK, keys - block * BLOCK) - word * 32;
  return left >= 32 ? 0xffffffffu : left <= 0 ? 0u : (1u << left) - 1;
}

__device__ __forceinline__ int classify(const Lists& in, const Found& out, const Band& band,
                                        long long line) {
  int row = static_cast<int>(line % in.lines);
  int height = min(in.tile_rows, in.queries - row * in.tile_rows);
  int words = (in.blocks + 31) / 32, count = 0;
  for (int start = band.first; start < band.stop; start += blockDim.x) {
    int block = start + threadIdx.x;
    bool any = false, all = block < band.stop;
    const Vector* own = reinterpret_cast<const Vector*>(band.bits) + (block - band.first) * VECTORS;
    if (block < band.stop) {
#pragma unroll
      for (int i = 0; i < VECTORS; ++i) {
        Vector held = own[i];
#pragma unroll
        for (int j = 0; j < WORDS / VECTORS; ++j) {
          unsigned word = reinterpret_cast<const unsigned*>(&held)[j];
          any |= word != 0;
          all &= word == in_range(in.keys, block, i * (WORDS / VECTORS) + j);
        }
      }
    }
    bool partial = any && !all;
    if (in.whole && partial) {
      atomicOr(out.status, PARTIAL_BLOCK);
      any = false;
    }
    unsigned listed = __ballot_sync(0xffffffffu, any);
    unsigned full = __ballot_sync(0xffffffffu, any && all);
    if (block < band.stop && threadIdx.x % 32 == 0) {
      out.listed[line * words + block / 32] = static_cast<int>(listed);
      out.full[line * words + block / 32] = static_cast<int>(full);
      count += __popc(listed);
    }
    if (partial && out.bits) {
      Vector* tile = reinterpret_cast<Vector*>(out.bits) +
                     (line * in.blocks + block) * in.tile_rows * VECTORS;
      for (int row = 0; row < in.tile_rows; ++row) {
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
          tile[row * VECTORS + i] = row < height ? own[i] : Vector();
        }
      }
    }
  }
  return count;
}

extern "C" __global__ void __launch_bounds__(512, 3) read_lists(const Lists in, const Found out) {
  extern __shared__ int4 shared[];
  __shared__ int blocks_found;
  int list = blockIdx.x % in.lists, pattern = blockIdx.x / in.lists;
  int head = pattern % in.heads, batch = pattern / in.heads;
  long long line = static_cast<long long>(pattern) * in.lines + list / in.lists_a_line;
  int place = list % in.lists_a_line;
  long long length = in.topk;
  if (in.lengths) {
    length = in.lengths[batch * in.length_strides[0] + head * in.length_strides[1] +
                        list * in.length_strides[2]];
    if (length < 0 || length > in.topk) {
      if (threadIdx.x == 0) atomicOr(out.status, BAD_LENGTH);
      length = length < 0 ? 0 : in.topk;
    }
  }
  const INDEX* start = in.indices + batch * in.batch_stride + head * in.head_stride +
                       list * in.list_stride;
  long long origin = batch * in.batch_origin;
  Band band = {reinterpret_cast<int*>(shared), 0, 0, 0, 0, static_cast<INDEX>(origin),
               static_cast<unsigned>(in.limit), 0};
  // No index of this type reaches all of this batch: what it reaches is still right.
  long long most = sizeof(INDEX) == 4 ? 0x7fffffffLL : 0x7fffffffffffffffLL;
  if (origin > most) band.origin = static_cast<INDEX>(most), band.limit = 0;
  if (threadIdx.x == 0) blocks_found = 0;
  bool bad = false;
  int count = 0;
  for (; band.first < in.blocks; band.first += in.blocks_a_pass) {
    band.stop = min(in.blocks, band.first + in.blocks_a_pass);
    long long keys = static_cast<long long>(band.stop) * BLOCK;
    long long before = static_cast<long long>(band.first) * BLOCK;
    keys = min(keys, static_cast<long long>(band.limit)) - before;
    band.start = static_cast<INDEX>(min(origin + before, most));
    band.keys = 0;
    if (keys > 0 && origin + before <= most) {  // and no further than the type reaches
      band.keys = static_cast<unsigned>(min(keys - 1, most - origin - before)) + 1;
    }
    int size = (band.stop - band.first) * WORDS;
    band.spare = (size + 3) / 4 * 4 + threadIdx.x % 32;
    for (int i = threadIdx.x; i < (size + 3) / 4; i += blockDim.x) shared[i] = make_int4(0, 0, 0, 0);
    __syncthreads();
    bad |= read_list(band, start, in.lane_stride, static_cast<int>(length));
    __syncthreads();
    if (CLASSIFY) {
      count += classify(in, out, band, line);
    } else {
      for (int i = threadIdx.x; i < size; i += blockDim.x) {
        long long block = line * in.blocks + band.first + i / WORDS;
        int* bits = out.bits + (block * in.lists_a_line + place) * WORDS + i % WORDS;
        bits[0] = band.bits[i];
        if (list == in.lists - 1) {  // rows of the tile that no list is for
          for (int row = place + 1; row < in.lists_a_line; ++row) bits[(row - place) * WORDS] = 0;
        }
      }
    }
    __syncthreads();
  }
  if (bad) atomicOr(out.status, BAD_INDEX);
  if (CLASSIFY) {
    if (count) atomicAdd(&blocks_found, count);
    __syncthreads();
    if (threadIdx.x == 0) out.counts[line] = blocks_found;
  }
}
