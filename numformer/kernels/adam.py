"""Adam: one thread for each weight reads and writes the weight and its state once."""

from numformer.kernels.cuda import Source, contiguous, threads_for

FORMULAS = ("adam",)
SOURCE = Source("""
extern "C" __global__ void adam(
    T* data, const T* grad, T* mean, T* square, double beta1, double beta2, double epsilon,
    double square_correction, double corrected_rate, Int N
) {
    Int n = Int(blockIdx.x) * blockDim.x + threadIdx.x;
    if (n >= N) return;
    T m = mean[n] * T(beta1) + T(1 - beta1) * grad[n];
    T s = square[n] * T(beta2) + grad[n] * grad[n] * T(1 - beta2);
    mean[n] = m;
    square[n] = s;
    data[n] -= m / (sqrt(s) * T(square_correction) + T(epsilon)) * T(corrected_rate);
}
""")


def adam(data, grad, mean, square, *, step, rate, beta1, beta2, epsilon) -> None:
    """See numformer.paper.adam."""
    square_correction = float((1 - beta2**step) ** -0.5)
    corrected_rate = float(rate / (1 - beta1**step))
    _, grad = contiguous(data, grad)
    N = data.size
    launch = threads_for(N)
    settings = float(beta1), float(beta2), float(epsilon), square_correction, corrected_rate
    SOURCE.start("adam", data, *launch, data, grad, mean, square, *settings, N)
