// Stands before a CUDA source and lets it run on the host: see cuda_on_host.py.
//
// One block runs at a time. Its threads run on fibers. A fiber gives the processor to the next one
// only where CUDA lets threads meet: at a barrier or a shuffle. When a thread ends, its fiber runs
// the next thread of the warp, so threads that never meet run in a plain loop.

// NVRTC has no system headers, so what these define beyond CUDA's functions is renamed or removed.
#define int8_t host_int8_t
#define int16_t host_int16_t
#define int32_t host_int32_t
#define int64_t host_int64_t
#define ushort host_ushort
#define uint host_uint
#define ulong host_ulong
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <type_traits>
#include <utility>
#undef int8_t
#undef int16_t
#undef int32_t
#undef int64_t
#undef ushort
#undef uint
#undef ulong
#undef INFINITY
#undef NAN
#undef HUGE_VAL
#undef M_E
#undef M_PI
#undef M_PI_2
#undef M_2_SQRTPI
#undef M_SQRT2
#undef M_SQRT1_2

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __shared__ static  // since one block runs at a time
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define ON_HOST_INLINE __attribute__((always_inline)) static inline

// Numbers

using half = _Float16;
using __half = _Float16;

inline half __float2half(float x) { return half(x); }
inline half __float2half_rn(float x) { return half(x); }

struct alignas(4) __half2 { half x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x = 1, y = 1, z = 1; };
#define alignas(n) __attribute__((aligned(n)))  // also after __shared__

// The larger or the smaller number; of a number and NaN, the number. As in CUDA, a call with any
// other pair of types is ambiguous.
#define EXTREMES(A, B)                                    \
    inline auto max(A a, B b) {                           \
        using T = decltype(a + b);                        \
        return T(a) != T(a) || T(a) < T(b) ? T(b) : T(a); \
    }                                                     \
    inline auto min(A a, B b) {                           \
        using T = decltype(a + b);                        \
        return T(a) != T(a) || T(b) < T(a) ? T(b) : T(a); \
    }
#define EXTREMES_OF(A, B) EXTREMES(A, A) EXTREMES(B, B) EXTREMES(A, B) EXTREMES(B, A)
EXTREMES_OF(int, unsigned)
EXTREMES_OF(long, unsigned long)
EXTREMES_OF(long long, unsigned long long)
EXTREMES_OF(float, double)
#undef EXTREMES_OF
#undef EXTREMES

// Threads

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace on_host {

using Slot = unsigned long long;  // holds any argument and any value of a shuffle

constexpr int MAX_THREADS = 1024;          // of a block
constexpr size_t STACK = 64 * 1024 + 192;  // not a power of two, or stacks would share cache lines

// Where a fiber or the launcher waits: its next instruction, its stack and its frame there.
struct Place {
    void *code, *stack, *frame;
};

enum State { FRESH, READY, AT_SHUFFLE, AT_BARRIER, ENDED };

struct Thread {
    Place place;
    uint3 index;
    int lane;
    State state;
    int barrier;              // the line of its barrier in the source
    unsigned mask, partners;  // lanes that its shuffle names, and those of them that take part
    Slot value, shared;       // its value in a shuffle, and the copy that its partners read
};

static Thread threads[MAX_THREADS];
static Thread *now, *end;  // the running thread, and the one past the last of its warp
static int step;           // from one thread to the next: 1 or -1
static Place launcher, fibers[MAX_THREADS], *idle[MAX_THREADS];  // idle: fibers without a thread
static int fiber_count, idle_count;
alignas(64) static char stacks[MAX_THREADS][STACK];
alignas(16) static char dynamic_shared[232448];
static const char* problem;
static unsigned long long blocks;  // how many have begun
static void (*kernel)(const Slot*);
static const Slot* arguments;

// Stops here and continues there. Every register counts as overwritten, so the compiler saves those
// that it needs.
ON_HOST_INLINE void go(Place* here, Place* there) {
    asm volatile(
        "lea 1f(%%rip), %%rax\n mov %%rax, (%0)\n mov %%rsp, 8(%0)\n mov %%rbp, 16(%0)\n"
        "mov 8(%1), %%rsp\n mov 16(%1), %%rbp\n jmp *(%1)\n 1:"
        : "+D"(here), "+S"(there)
        :
        : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0",
          "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
          "xmm12", "xmm13", "xmm14", "xmm15", "memory", "cc");
}

static void run_threads();

// Where the warp continues: at its next thread that can run; after the last one, at the launcher.
static Place* next() {
    while ((now += step) != end) {
        if (now->state == READY) return &now->place;
        if (now->state != FRESH) continue;
        if (idle_count) return idle[--idle_count];
        char* top = stacks[fiber_count] + STACK - 64;
        fibers[fiber_count] = {(void*)run_threads, top - 8, top};  // as a call leaves it
        return &fibers[fiber_count++];
    }
    return &launcher;
}

// What a fiber does: it runs threads that have not begun, one after the other.
static void run_threads() {
    Place rest;
    for (;;) {
        for (;; now += step) {
            threadIdx = now->index;
            kernel(arguments);
            now->state = ENDED;
            if (now + step == end || now[step].state != FRESH) break;
        }
        idle[idle_count++] = &rest;
        go(&rest, next());
    }
}

// Ends the kernel; a thread calls this.
ON_HOST_INLINE void fail(const char* what) {
    problem = what;
    go(&now->place, &launcher);
}

struct SourcePlace {
    const char* file;
    unsigned line, column;
};

static void fail_at(const SourcePlace* place, const char* what) {
    static char text[100];
    snprintf(text, sizeof text, "line %u of the source: %s", place->line, what);
    fail(text);
}

ON_HOST_INLINE void wait(State state) {
    now->state = state;
    Place* here = &now->place;
    go(here, next());
    threadIdx = now->index;
}

ON_HOST_INLINE void barrier(int line) {
    now->barrier = line;
    wait(AT_BARRIER);
}

// Offers a value to the lanes of `mask`, all of which must take part.
ON_HOST_INLINE void meet(unsigned mask, Slot value) {
    if (!(mask >> now->lane & 1)) fail("a thread is not in the mask of its own shuffle");
    now->mask = mask;
    now->value = value;
    wait(AT_SHUFFLE);
}

// The value of a lane. If the lane takes no part, CUDA leaves it undefined; here it is NaN, or -1.
ON_HOST_INLINE Slot value_of(int lane) {
    return now->partners >> lane & 1 ? now[lane - now->lane].shared : ~Slot(0);
}

template <class T> ON_HOST_INLINE T shuffle(unsigned mask, T value, int source) {
    static_assert(sizeof(T) <= sizeof(Slot));
    Slot slot = 0;
    memcpy(&slot, &value, sizeof value);
    meet(mask, slot);
    slot = value_of(source);
    memcpy(&value, &slot, sizeof value);
    return value;
}

// Lets the threads of a warp continue whose partners have all come. Returns whether there are any.
static bool release(Thread* first, int count) {
    unsigned alive = 0, waiting = 0, released = 0;
    for (int i = 0; i < count; i++) {
        alive |= unsigned(first[i].state != ENDED) << i;
        waiting |= unsigned(first[i].state == AT_SHUFFLE) << i;
    }
    for (int i = 0; i < count; i++) {
        if (!((waiting & ~released) >> i & 1)) continue;
        unsigned partners = first[i].mask & alive;
        bool together = !(partners & ~waiting);
        for (int k = 0; k < count; k++)
            together &= !(partners >> k & 1) || first[k].mask == first[i].mask;
        if (!together) continue;
        for (int k = 0; k < count; k++)
            if (partners >> k & 1) {
                first[k].partners = partners;
                first[k].shared = first[k].value;
                first[k].state = READY;
            }
        released |= partners;
    }
    if (waiting && !released) problem = "a shuffle waits for threads that wait elsewhere";
    return released;
}

// Runs the threads of a warp until each waits at a barrier or has ended.
static void run_warp(Thread* first, int count) {
    do {
        now = (step > 0 ? first : first + count - 1) - step;
        end = step > 0 ? first + count : first - 1;
        go(&launcher, next());
    } while (!problem && release(first, count));
}

// Runs the threads of a block, in order or backward, until each has ended.
static void run_block(int count, bool backward) {
    blocks++;
    step = backward ? -1 : 1;
    for (int i = 0; i < count; i++) threads[i].state = FRESH;
    for (bool waiting = true; waiting;) {
        int warps = (count + 31) / 32;
        for (int i = 0; i < warps; i++) {
            int first = 32 * (backward ? warps - 1 - i : i);
            run_warp(threads + first, count - first < 32 ? count - first : 32);
            if (problem) return;
        }
        waiting = false;
        for (int i = 0, line = 0; i < count; i++) {
            if (threads[i].state != AT_BARRIER) continue;
            if (waiting && threads[i].barrier != line) problem = "threads wait at two barriers";
            line = threads[i].barrier;
            threads[i].state = READY;
            waiting = true;
        }
        if (problem) return;
    }
}

// Runs a kernel and returns what went wrong, if anything. `sizes` has the sizes of grid, block and
// dynamic shared memory. Blocks alternate between two orders of their threads, so that a missing
// barrier gives a wrong result in one of them.
static const char* launch(void (*callee)(const Slot*), const unsigned* sizes, const Slot* slots) {
    problem = nullptr;
    kernel = callee;
    arguments = slots;
    gridDim = {sizes[0], sizes[1], sizes[2]};
    blockDim = {sizes[3], sizes[4], sizes[5]};
    Thread* thread = threads;
    for (unsigned z = 0; z < blockDim.z; z++)
        for (unsigned y = 0; y < blockDim.y; y++)
            for (unsigned x = 0; x < blockDim.x; x++, thread++) {
                thread->index = {x, y, z};
                thread->lane = (thread - threads) % 32;
            }
    for (unsigned z = 0; z < gridDim.z; z++)
        for (unsigned y = 0; y < gridDim.y; y++)
            for (unsigned x = 0; x < gridDim.x && !problem; x++) {
                blockIdx = {x, y, z};
                memset(dynamic_shared, 0xff, sizes[6]);
                run_block(thread - threads, (x + y + z) % 2);
            }
    if (problem) fiber_count = idle_count = 0;  // some fibers never end
    return problem;
}

// NumPy's letter for the type of an argument.
template <class T> constexpr char letter() {
    if constexpr (std::is_same_v<T, half> || std::is_same_v<T, __half2>) return 'e';
    if constexpr (std::is_same_v<T, float>) return 'f';
    if constexpr (std::is_same_v<T, float4>) return 'f';
    if constexpr (std::is_same_v<T, double>) return 'd';
    if constexpr (std::is_same_v<T, bool>) return '?';
    if constexpr (std::is_same_v<T, char> || std::is_same_v<T, signed char>) return 'b';
    if constexpr (std::is_same_v<T, unsigned char>) return 'B';
    if constexpr (std::is_same_v<T, short>) return 'h';
    if constexpr (std::is_same_v<T, unsigned short>) return 'H';
    if constexpr (std::is_same_v<T, int>) return 'i';
    if constexpr (std::is_same_v<T, unsigned>) return 'I';
    if constexpr (std::is_same_v<T, long> || std::is_same_v<T, long long>) return 'q';
    if constexpr (std::is_same_v<T, unsigned long>) return 'Q';
    if constexpr (std::is_same_v<T, unsigned long long>) return 'Q';
    return '-';  // any
}

// For each argument of a kernel: "*" if it is a pointer, else "="; then the letter of its type.
template <class... T> const char* types(void (*)(T...)) {
    static const char all[][2] = {
        {std::is_pointer_v<T> ? '*' : '=',
         letter<std::remove_cv_t<std::remove_pointer_t<T>>>()}...,
        {0, 0}};
    return all[0];
}

template <class T> T argument(const Slot& slot) {
    static_assert(sizeof(T) <= sizeof(Slot), "structures as arguments are not supported");
    T value;
    memcpy(&value, &slot, sizeof value);
    return value;
}

template <class... T, size_t... I>
void call(void (*function)(T...), const Slot* slots, std::index_sequence<I...>) {
    function(argument<T>(slots[I])...);
}

template <class... T> void call(void (*function)(T...), const Slot* slots) {
    call(function, slots, std::index_sequence_for<T...>());
}

}  // namespace on_host

// The compiled code calls these where an index or a pointer is wrong.
extern "C" void __ubsan_handle_out_of_bounds(on_host::SourcePlace* place, void*) {
    on_host::fail_at(place, "an index outside of its array");
}
extern "C" void __ubsan_handle_type_mismatch_v1(on_host::SourcePlace* place, void*) {
    on_host::fail_at(place, "an address that is not aligned");
}

// Stands after a shared variable. A block's first thread to get there fills it with NaN, or -1.
#define ON_HOST_UNDEFINED(variable)                   \
    {                                                 \
        static unsigned long long block;              \
        if (block != on_host::blocks) {               \
            block = on_host::blocks;                  \
            memset(&variable, 0xff, sizeof variable); \
        }                                             \
    }

#define __syncthreads() on_host::barrier(__LINE__)
ON_HOST_INLINE void __syncwarp(unsigned mask = ~0u) { on_host::meet(mask, 0); }

template <class T>
ON_HOST_INLINE T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    return on_host::shuffle(mask, value, (on_host::now->lane & -width) | (source & (width - 1)));
}
template <class T>
ON_HOST_INLINE T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
    int lane = on_host::now->lane, source = lane ^ bits;
    return on_host::shuffle(mask, value, source < (lane & -width) + width ? source : lane);
}
template <class T>
ON_HOST_INLINE T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    int lane = on_host::now->lane, source = lane + by;
    return on_host::shuffle(mask, value, source < (lane & -width) + width ? source : lane);
}

#define ON_HOST_KERNEL(number, function)                                                        \
    extern "C" const char* types_##number() { return on_host::types(function); }                \
    extern "C" const char* launch_##number(const unsigned* sizes, const on_host::Slot* slots) { \
        auto callee = [](const on_host::Slot* slots) { on_host::call(function, slots); };       \
        return on_host::launch(callee, sizes, slots);                                           \
    }
