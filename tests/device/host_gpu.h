// A GPU played on the CPU, for kernels in CUDA C++ that only use what is here: CTAs run one after
// another, each thread is a fibre, and fibres take turns where threads of a GPU would wait for each
// other. Wrong arguments of a kernel show as they would there, or under a sanitiser.
#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)

using std::max;
using std::min;

struct int4 {
  int x, y, z, w;
};
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }

struct Dim {
  unsigned x;
};
static Dim threadIdx, blockIdx, blockDim, gridDim;

namespace host {

constexpr size_t STACK = 64 << 10;
struct Fibre {
  ucontext_t context;
  char* stack = static_cast<char*>(malloc(STACK));
  bool done;
};
struct Meeting {  // of a warp, or of a CTA
  int wanted = 0, here = 0;
  unsigned long long round = 0;
};
static std::vector<Fibre> fibres;  // kept from CTA to CTA
static std::vector<Meeting> warps;
static Meeting cta;
static std::vector<long long> slots;
static ucontext_t scheduler;
static unsigned current;
static std::function<void()> body;

inline void take_turns() {
  unsigned own = current;
  swapcontext(&fibres[own].context, &scheduler);
  current = own;
  threadIdx.x = own;
}

inline void meet(Meeting& meeting) {
  unsigned long long round = meeting.round;
  if (++meeting.here == meeting.wanted) {
    meeting.here = 0;
    ++meeting.round;
  }
  while (meeting.round == round) take_turns();
}

inline void enter() {
  body();
  fibres[current].done = true;
  swapcontext(&fibres[current].context, &scheduler);
}

// Runs `kernel` with that many CTAs of `threads`.
inline void launch(unsigned grid, unsigned threads, std::function<void()> kernel) {
  body = kernel;
  blockDim.x = threads, gridDim.x = grid;
  while (fibres.size() < threads) fibres.emplace_back();
  for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) {
    warps.assign((threads + 31) / 32, Meeting{32});
    cta = Meeting{static_cast<int>(threads)};
    slots.assign(threads, 0);
    for (unsigned i = 0; i < threads; ++i) {
      Fibre& fibre = fibres[i];
      fibre.done = false;
      getcontext(&fibre.context);
      fibre.context.uc_stack.ss_sp = fibre.stack;
      fibre.context.uc_stack.ss_size = STACK;
      fibre.context.uc_link = &scheduler;
      makecontext(&fibre.context, enter, 0);
    }
    for (unsigned left = threads; left;) {
      for (unsigned i = 0; i < threads; ++i) {
        if (fibres[i].done) continue;
        current = threadIdx.x = i;
        swapcontext(&scheduler, &fibres[i].context);
        left -= fibres[i].done;
      }
    }
  }
}

template <class T>
T exchange(T value, unsigned from) {
  unsigned own = current, first = own / 32 * 32;
  slots[own] = 0;
  memcpy(&slots[own], &value, sizeof(T));
  meet(warps[own / 32]);
  memcpy(&value, &slots[first + from % 32], sizeof(T));
  meet(warps[own / 32]);
  return value;
}

}  // namespace host

inline void __syncthreads() { host::meet(host::cta); }
inline void __syncwarp() { host::meet(host::warps[host::current / 32]); }

template <class T>
T __shfl_sync(unsigned, T value, int from) {
  return host::exchange(value, from);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int with) {
  return host::exchange(value, host::current % 32 ^ with);
}
template <class T>
T __shfl_up_sync(unsigned, T value, int by) {
  int lane = host::current % 32;
  return host::exchange(value, lane >= by ? lane - by : lane);
}
inline unsigned __ballot_sync(unsigned, bool own) {
  unsigned word = 0, first = host::current / 32 * 32;
  host::slots[host::current] = own;
  host::meet(host::warps[first / 32]);
  for (int i = 0; i < 32; ++i) word |= static_cast<unsigned>(host::slots[first + i]) << i;
  host::meet(host::warps[first / 32]);
  return word;
}
inline bool __all_sync(unsigned mask, bool own) { return __ballot_sync(mask, own) == 0xffffffffu; }

inline int __popc(unsigned word) { return __builtin_popcount(word); }
inline int __ffs(unsigned word) { return __builtin_ffs(static_cast<int>(word)); }
template <class T>
void __stcs(T* to, T value) {
  *to = value;
}

template <class T>
T __ldcs(const T* from) {
  return *from;
}
inline int atomicOr(int* target, int bits) {
  int old = *target;
  *target |= bits;
  return old;
}
inline int atomicAdd(int* target, int by) {
  int old = *target;
  *target += by;
  return old;
}
