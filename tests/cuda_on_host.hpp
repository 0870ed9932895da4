// What a CUDA source needs to run on the host, before it: see cuda_on_host.py.
//
// One block runs at a time. Its threads are fibers, which leave the processor to the next one only
// where CUDA lets them meet: at a barrier or a shuffle. A fiber whose thread has ended takes the next
// thread of the warp, so threads that never meet run in a plain loop.

#include <math.h>
#include <setjmp.h>
#include <string.h>
#include <ucontext.h>

#include <type_traits>
#include <utility>

// NVRTC has none of these.
#undef INFINITY
#undef NAN
#undef HUGE_VAL
#undef HUGE_VALF

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __shared__ static  // one block at a time
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

// Numbers

using half = _Float16;
using __half = _Float16;

template <class T, class S> T bits_as(S value) {
    static_assert(sizeof(T) == sizeof(S));
    T bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline unsigned __float_as_uint(float x) { return bits_as<unsigned>(x); }
inline int __float_as_int(float x) { return bits_as<int>(x); }
inline float __uint_as_float(unsigned x) { return bits_as<float>(x); }
inline float __int_as_float(int x) { return bits_as<float>(x); }
inline long long __double_as_longlong(double x) { return bits_as<long long>(x); }
inline double __longlong_as_double(long long x) { return bits_as<double>(x); }

struct __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float x) {  // to the nearest, of two to the even one
        unsigned u = __float_as_uint(x);
        bits = x == x ? (u + 0x7fff + (u >> 16 & 1)) >> 16 : 0x7fff;
    }
    operator float() const { return __uint_as_float(unsigned(bits) << 16); }
};

inline half __float2half(float x) { return half(x); }
inline half __float2half_rn(float x) { return half(x); }
inline float __half2float(half x) { return float(x); }
inline unsigned short __half_as_ushort(half x) { return bits_as<unsigned short>(x); }
inline half __ushort_as_half(unsigned short x) { return bits_as<half>(x); }
inline __nv_bfloat16 __float2bfloat16(float x) { return x; }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
inline float __bfloat162float(__nv_bfloat16 x) { return x; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return bits_as<__nv_bfloat16>(x); }

#define VECTORS(T, name)                                                                        \
    struct alignas(2 * sizeof(T)) name##2 { T x, y; };                                          \
    struct name##3 { T x, y, z; };                                                              \
    struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) name##4 { T x, y, z, w; };          \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                  \
    inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                          \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
VECTORS(float, float)
VECTORS(double, double)
VECTORS(int, int)
VECTORS(unsigned, uint)
VECTORS(unsigned short, ushort)
VECTORS(unsigned char, uchar)
struct alignas(4) __half2 { half x, y; };
using half2 = __half2;
struct alignas(4) __nv_bfloat162 { __nv_bfloat16 x, y; };
struct dim3 { unsigned x = 1, y = 1, z = 1; };

// The larger or the smaller number; of a number and NaN, the number.
template <class A, class B> auto max(A a, B b) -> std::common_type_t<A, B> {
    using T = std::common_type_t<A, B>;
    return T(a) != T(a) || T(a) < T(b) ? T(b) : T(a);
}
template <class A, class B> auto min(A a, B b) -> std::common_type_t<A, B> {
    using T = std::common_type_t<A, B>;
    return T(a) != T(a) || T(b) < T(a) ? T(b) : T(a);
}

inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline float rsqrt(float x) { return 1 / sqrtf(x); }
inline double rsqrt(double x) { return 1 / sqrt(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __frsqrt_rn(float x) { return 1 / sqrtf(x); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frcp_rn(float x) { return 1 / x; }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __saturatef(float x) { return x > 0 ? x < 1 ? x : 1 : 0; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned long long)a * b >> 32; }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned __int128)a * b >> 64;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }

template <class T> T __ldg(const T* from) { return *from; }
template <class T> T __ldcs(const T* from) { return *from; }
template <class T> T __ldcg(const T* from) { return *from; }
template <class T> void __stcs(T* to, T value) { *to = value; }
template <class T> void __stcg(T* to, T value) { *to = value; }

// No thread is interrupted, so what is atomic is what is plain.
template <class T, class F> T replaced(T* place, F change) {
    T old = *place;
    *place = change(old);
    return old;
}
template <class T, class S> T atomicAdd(T* p, S value) {
    return replaced(p, [&](T old) { return old + T(value); });
}
template <class T, class S> T atomicMax(T* p, S value) {
    return replaced(p, [&](T old) { return max(old, T(value)); });
}
template <class T, class S> T atomicMin(T* p, S value) {
    return replaced(p, [&](T old) { return min(old, T(value)); });
}
template <class T, class S> T atomicOr(T* p, S value) {
    return replaced(p, [&](T old) { return old | T(value); });
}
template <class T, class S> T atomicExch(T* p, S value) {
    return replaced(p, [&](T) { return T(value); });
}
template <class T, class S, class R> T atomicCAS(T* p, S expected, R value) {
    return replaced(p, [&](T old) { return old == T(expected) ? T(value) : old; });
}
inline unsigned atomicInc(unsigned* p, unsigned last) {
    return replaced(p, [&](unsigned old) { return old >= last ? 0 : old + 1; });
}
inline void __threadfence() {}
inline void __threadfence_block() {}

// Threads

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
constexpr int warpSize = 32;

namespace on_host {

using Slot = unsigned long long;  // holds any argument and any value of a shuffle

constexpr int MOST = 1024;                 // threads of a block
constexpr size_t STACK = 64 * 1024 + 192;  // no power of two, or all stacks share cache lines

enum State { FRESH, READY, AT_SHUFFLE, AT_BARRIER, ENDED };

struct Thread {
    jmp_buf place;  // where it waits
    uint3 index;
    State state;
    int barrier;              // its line in the source
    unsigned mask, partners;  // lanes that a shuffle names, and those that came
    Slot given, shown;        // its own value, and what its partners see of it
};

static Thread threads[MOST];
static Thread *now, *end;  // the running thread, and the one past the last of its warp
static int step;           // from one thread to the next: 1 or -1
alignas(16) static char stacks[MOST][STACK];
alignas(16) static char dynamic_shared[232448];
static jmp_buf* idle[MOST];  // fibers without a thread
static int idle_count, stack_count;
static jmp_buf scheduler, launcher;
static const char* problem;
static void (*kernel)(const Slot*);
static const Slot* arguments;

[[noreturn]] inline void fail(const char* what) {
    problem = what;
    _longjmp(launcher, 1);
}

void run_threads();

[[noreturn]] inline void start() {
    if (idle_count) _longjmp(*idle[--idle_count], 1);
    static ucontext_t fiber;
    getcontext(&fiber);
    fiber.uc_stack.ss_sp = stacks[stack_count++];
    fiber.uc_stack.ss_size = STACK;
    makecontext(&fiber, run_threads, 0);
    setcontext(&fiber);
    __builtin_unreachable();
}

// Leaves the processor to the next thread of the warp that can run, after the last to the scheduler.
[[noreturn]] inline void pass_on() {
    while ((now += step) != end) {
        if (now->state == READY) _longjmp(now->place, 1);
        if (now->state == FRESH) start();
    }
    _longjmp(scheduler, 1);
}

// What a fiber does.
void run_threads() {
    jmp_buf rest;
    for (;;) {
        for (;; now += step) {
            threadIdx = now->index;
            kernel(arguments);
            now->state = ENDED;
            if (now + step == end || now[step].state != FRESH) break;
        }
        if (!_setjmp(rest)) {
            idle[idle_count++] = &rest;
            pass_on();
        }
    }
}

__attribute__((noinline)) void wait(State state) {
    now->state = state;
    if (!_setjmp(now->place)) pass_on();
    threadIdx = now->index;
}

inline void barrier(int line) {
    now->barrier = line;
    wait(AT_BARRIER);
}

// Gives a value to the lanes of `mask`, all of which must come.
inline void meet(unsigned mask, Slot value) {
    if (!(mask >> (now - threads) % 32 & 1)) fail("a thread is not in the mask of its own shuffle");
    now->mask = mask;
    now->given = value;
    wait(AT_SHUFFLE);
}

// The value of a lane. Where none came it is undefined: here NaN, or -1.
inline Slot shown_by(int lane) {
    return now->partners >> lane & 1 ? (now - (now - threads) % 32)[lane].shown : ~Slot(0);
}

template <class T> T shuffle(unsigned mask, T value, int source) {
    static_assert(sizeof(T) <= sizeof(Slot));
    Slot slot = 0;
    memcpy(&slot, &value, sizeof value);
    meet(mask, slot);
    slot = shown_by(source);
    memcpy(&value, &slot, sizeof value);
    return value;
}

inline int lane() { return (now - threads) % 32; }

// Lets those threads go on whose partners have come, too; whether there are any.
inline bool release(Thread* first, int count) {
    unsigned alive = 0, waiting = 0, released = 0;
    for (int i = 0; i < count; i++) {
        alive |= unsigned(first[i].state != ENDED) << i;
        waiting |= unsigned(first[i].state == AT_SHUFFLE) << i;
    }
    for (int i = 0; i < count; i++) {
        if (!(waiting >> i & 1) || released >> i & 1) continue;
        unsigned partners = first[i].mask & alive, same = 0;
        for (int k = 0; k < count; k++) same |= unsigned(first[k].mask == first[i].mask) << k;
        if (partners & ~(waiting & same)) continue;
        for (int k = 0; k < count; k++)
            if (partners >> k & 1) {
                first[k].partners = partners;
                first[k].shown = first[k].given;
                first[k].state = READY;
            }
        released |= partners;
    }
    if (waiting && !released) fail("a shuffle waits for threads that wait elsewhere");
    return released;
}

__attribute__((noinline)) void run_ready(Thread* first, int count) {
    now = (step > 0 ? first : first + count - 1) - step;
    end = step > 0 ? first + count : first - 1;
    if (!_setjmp(scheduler)) pass_on();
}

// Runs the threads of a block, in this order or in the opposite one, until each has ended.
inline void run_block(int count, bool backward) {
    step = backward ? -1 : 1;
    for (int i = 0; i < count; i++) threads[i].state = FRESH;
    for (bool more = true; more;) {
        int warps = (count + 31) / 32;
        for (int i = 0; i < warps; i++) {
            int first = 32 * (backward ? warps - 1 - i : i);
            int lanes = count - first < 32 ? count - first : 32;
            do run_ready(threads + first, lanes);
            while (release(threads + first, lanes));
        }
        more = false;
        int line = 0;
        for (int i = 0; i < count; i++)
            if (threads[i].state == AT_BARRIER) {
                if (more && threads[i].barrier != line) fail("threads wait at different barriers");
                line = threads[i].barrier;
                threads[i].state = READY;
                more = true;
            }
    }
}

// Runs a kernel; `sizes` are those of grid and block, and of the dynamic shared memory. -> what
// went wrong, if anything. Blocks alternate between two orders of their threads, so that what a
// missing barrier lets happen is wrong in one of them.
inline const char* launch(void (*called)(const Slot*), const unsigned* sizes, const Slot* slots) {
    kernel = called;
    arguments = slots;
    gridDim = {sizes[0], sizes[1], sizes[2]};
    blockDim = {sizes[3], sizes[4], sizes[5]};
    Thread* thread = threads;
    for (unsigned z = 0; z < blockDim.z; z++)
        for (unsigned y = 0; y < blockDim.y; y++)
            for (unsigned x = 0; x < blockDim.x; x++) thread++->index = {x, y, z};
    if (_setjmp(launcher)) {
        idle_count = stack_count = 0;  // fibers of that block never end
        return problem;
    }
    for (unsigned z = 0; z < gridDim.z; z++)
        for (unsigned y = 0; y < gridDim.y; y++)
            for (unsigned x = 0; x < gridDim.x; x++) {
                blockIdx = {x, y, z};
                memset(dynamic_shared, 0xff, sizes[6]);
                run_block(blockDim.x * blockDim.y * blockDim.z, (x + y + z) % 2);
            }
    return nullptr;
}

// NumPy's letter for the type of an argument, after "*" if it is a pointer to that.
template <class T> constexpr char letter() {
    if constexpr (std::is_same_v<T, half> || std::is_same_v<T, half2>) return 'e';
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, float2>) return 'f';
    if constexpr (std::is_same_v<T, float4>) return 'f';
    if constexpr (std::is_same_v<T, double> || std::is_same_v<T, double2>) return 'd';
    if constexpr (std::is_same_v<T, bool>) return '?';
    if constexpr (std::is_same_v<T, char> || std::is_same_v<T, signed char>) return 'b';
    if constexpr (std::is_same_v<T, unsigned char>) return 'B';
    if constexpr (std::is_same_v<T, short>) return 'h';
    if constexpr (std::is_same_v<T, unsigned short>) return 'H';
    if constexpr (std::is_same_v<T, __nv_bfloat16> || std::is_same_v<T, __nv_bfloat162>) return 'H';
    if constexpr (std::is_same_v<T, int> || std::is_same_v<T, int4>) return 'i';
    if constexpr (std::is_same_v<T, unsigned> || std::is_same_v<T, uint4>) return 'I';
    if constexpr (std::is_same_v<T, long> || std::is_same_v<T, long long>) return 'q';
    if constexpr (std::is_same_v<T, unsigned long>) return 'Q';
    if constexpr (std::is_same_v<T, unsigned long long>) return 'Q';
    return '-';  // any
}

template <class... T> const char* letters(void (*)(T...)) {
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

#define __syncthreads() on_host::barrier(__LINE__)
inline void __syncwarp(unsigned mask = ~0u) { on_host::meet(mask, 0); }

template <class T> T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    return on_host::shuffle(mask, value, (on_host::lane() & -width) | (source & (width - 1)));
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
    int lane = on_host::lane(), source = lane ^ bits;
    return on_host::shuffle(mask, value, source < (lane & -width) + width ? source : lane);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    int lane = on_host::lane(), source = lane + by;
    return on_host::shuffle(mask, value, source < (lane & -width) + width ? source : lane);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    int lane = on_host::lane(), source = lane - int(by);
    return on_host::shuffle(mask, value, source >= (lane & -width) ? source : lane);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    on_host::meet(mask, predicate != 0);
    unsigned ballot = 0;
    for (int lane = 0; lane < 32; lane++)
        if (on_host::now->partners >> lane & 1) ballot |= unsigned(on_host::shown_by(lane)) << lane;
    return ballot;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

#define KERNEL(number, function)                                                                \
    extern "C" const char* letters_##number() { return on_host::letters(function); }            \
    extern "C" const char* launch_##number(const unsigned* sizes, const on_host::Slot* slots) { \
        auto called = [](const on_host::Slot* slots) { on_host::call(function, slots); };       \
        return on_host::launch(called, sizes, slots);                                           \
    }
