# SPDX-License-Identifier: BSD-3-Clause
"""LGC's autoencoder written a second time, in numpy and f64: what oneDNN computed (lgc_dump) must come out: codes,
reconstructions, losses, gradients and the weights after two steps of either optimiser. Usage: test_lgc_numpy.py DUMP"""
import pathlib
import subprocess
import sys
import tempfile

import numpy

ENCODER = [(1, 64, 3, 2), (64, 128, 3, 2), (128, 256, 3, 2), (256, 64, 3, 2), (64, 4, 1, 1)]
DECODER = [(4, 32), (32, 64), (64, 128), (128, 32)]
SLOPE, RATE, LAMBDA_REC, LAMBDA_SIMILAR, CHOSEN = 0.01, 0.001, 0.5, 0.25, 1


def leaky(x):
    return numpy.where(x > 0, x, SLOPE * x)


def leaky_back(d, y):
    return d * numpy.where(y > 0, 1, SLOPE)


class Conv:
    """x [cin][n] -> [cout][n / stride], zero padding of 1 in front where there are 3 taps."""
    def __init__(self, flat, cin, cout, taps, stride):
        n = cin * cout * taps
        self.w, self.b, self.taps, self.stride = flat[:n].reshape(cout, cin, taps), flat[n:n + cout], taps, stride
        self.size = n + cout

    def columns(self, x):
        padded = numpy.pad(x, ((0, 0), (1, 0))) if self.taps == 3 else x
        n = x.shape[1] // self.stride
        return numpy.stack([padded[:, t:t + self.stride * (n - 1) + 1:self.stride] for t in range(self.taps)], 2)

    def forward(self, x):
        self.x = x
        self.y = leaky(numpy.einsum("oit,int->on", self.w, self.columns(x)) + self.b[:, None])
        return self.y

    def backward(self, d):
        d = leaky_back(d, self.y)
        gradient = numpy.concatenate([numpy.einsum("on,int->oit", d, self.columns(self.x)).ravel(), d.sum(1)])
        by_columns = numpy.einsum("oit,on->int", self.w, d)
        shift = 1 if self.taps == 3 else 0
        dx = numpy.zeros((self.x.shape[0], self.x.shape[1] + shift))
        for t in range(self.taps):
            dx[:, t:t + self.stride * (d.shape[1] - 1) + 1:self.stride] += by_columns[:, :, t]
        return dx[:, shift:], gradient


class Transposed:
    """x [cin][n] -> [cout][2 n]: x[j] reaches y[2 j + tap - 1]."""
    def __init__(self, flat, cin, cout):
        n = cin * cout * 3
        self.w, self.b, self.size = flat[:n].reshape(cin, cout, 3), flat[n:n + cout], n + cout

    def forward(self, x):
        self.x, n = x, x.shape[1]
        y = numpy.zeros((self.w.shape[1], 2 * n + 1))  # one in front, which is cut off
        for t in range(3):
            y[:, t:t + 2 * n - 1:2] += self.w[:, :, t].T @ x
        self.y = leaky(y[:, 1:] + self.b[:, None])
        return self.y

    def backward(self, d):
        d, n = leaky_back(d, self.y), self.x.shape[1]
        padded = numpy.pad(d, ((0, 0), (1, 0)))
        taps = [padded[:, t:t + 2 * n - 1:2] for t in range(3)]
        gradient = numpy.stack([self.x @ tap.T for tap in taps], 2)
        return sum(self.w[:, :, t] @ taps[t] for t in range(3)), numpy.concatenate([gradient.ravel(), d.sum(1)])


class Stack:
    def __init__(self, flat, layers, kind):
        self.layers, self.size = [], 0
        for layer in layers:
            self.layers.append(kind(flat[self.size:], *layer))
            self.size += self.layers[-1].size

    def forward(self, x):
        for layer in self.layers:
            x = layer.forward(x)
        return x

    def backward(self, d):
        parts = []
        for layer in reversed(self.layers):
            d, gradient = layer.backward(d)
            parts.insert(0, gradient)
        return d, numpy.concatenate(parts)


class Decoder:
    def __init__(self, flat, innovates):
        self.stack = Stack(flat, DECODER, Transposed)
        n = 33 if innovates else 32
        self.w, self.b = flat[self.stack.size:self.stack.size + n], flat[self.stack.size + n]
        self.size = self.stack.size + n + 1

    def forward(self, code, innovation):
        self.h = self.stack.forward(code)
        if innovation is not None:
            self.h = numpy.vstack([self.h, innovation])
        return self.w @ self.h + self.b

    def backward(self, d):
        dcode, gradient = self.stack.backward(numpy.outer(self.w[:32], d))
        return dcode, numpy.concatenate([gradient, self.h @ d, [d.sum()]])


def mse(a, b):
    return ((a - b) ** 2).mean()


def networks(flat, decoders):
    """An encoder to be used once, and the decoders."""
    size, found = Stack(flat, ENCODER, Conv).size, []
    for _ in range(decoders):
        found.append(Decoder(flat[size:], decoders > 1))
        size += found[-1].size
    assert size == flat.size, f"{flat.size} weights, expected {size}"
    return found


def ring_loss(flat, x):
    decoder, = networks(flat, 1)
    encoders = [Stack(flat, ENCODER, Conv) for _ in x]
    mean = x.mean(0)
    y = decoder.forward(numpy.mean([e.forward(v[None]) for e, v in zip(encoders, x)], 0), None)
    dcode, gradient = decoder.backward(2 * (y - mean) / mean.size)
    return mse(y, mean), numpy.concatenate([sum(e.backward(dcode / len(x))[1] for e in encoders), gradient])


def server_loss(flat, x, innovation):
    decoders, ranks = networks(flat, len(x)), len(x)
    encoders = [Stack(flat, ENCODER, Conv) for _ in x]
    codes = [e.forward(v[None]) for e, v in zip(encoders, x)]
    pairs = [(i, j) for i in range(ranks) for j in range(ranks) if i != j]
    loss = LAMBDA_SIMILAR * sum(mse(codes[i], codes[j]) for i, j in pairs)
    dcodes = [numpy.zeros_like(c) for c in codes]
    for i, j in pairs:
        d = LAMBDA_SIMILAR * 2 * (codes[i] - codes[j]) / codes[i].size
        dcodes[i] += d
        dcodes[j] -= d
    gradients = []
    for decoder, v, news in zip(decoders, x, innovation):
        y = decoder.forward(codes[CHOSEN], news)
        loss += LAMBDA_REC * mse(y, v)
        dcode, gradient = decoder.backward(LAMBDA_REC * 2 * (y - v) / v.size)
        dcodes[CHOSEN] += dcode
        gradients.append(gradient)
    encoder = sum(e.backward(d)[1] for e, d in zip(encoders, dcodes))
    return loss, numpy.concatenate([encoder, *gradients])


def update(flat, gradient, moments, step, sgd):
    if sgd:
        return flat - RATE * gradient
    moments[0] = .9 * moments[0] + .1 * gradient
    moments[1] = .999 * moments[1] + .001 * gradient ** 2
    return flat - RATE * moments[0] / (1 - .9 ** step) / (numpy.sqrt(moments[1] / (1 - .999 ** step)) + 1e-8)


def close(name, got, want, tolerance):
    """The largest difference, over the largest value."""
    error = numpy.abs(got - want).max() / numpy.abs(want).max()
    print(f"# {name}: off by {error:.2g} of the largest of {want.size}")
    assert error < tolerance, f"{name} is off by {error:.3g}, at most {tolerance}"


def check(dump, mu, ranks, instance, optimiser):
    server = instance == "server"
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run([dump, folder, str(mu), str(ranks), instance, optimiser], check=True,
                             stdout=subprocess.PIPE, universal_newlines=True)
        data = {p.name: numpy.fromfile(p, "float32").astype("float64") for p in pathlib.Path(folder).iterdir()}
    x, innovation = data["x"].reshape(ranks, mu), data["innovation"].reshape(ranks, mu)
    moments = [0, 0]
    for step, said in enumerate(map(float, run.stdout.split())):
        flat = data[f"weights{step}"]
        loss, gradient = server_loss(flat, x, innovation) if server else ring_loss(flat, x)
        assert abs(said - loss) < 1e-5 * loss, f"loss {said}, expected {loss}"
        close(f"gradient {step}", data[f"gradient{step}"], gradient, 1e-4)
        # From oneDNN's gradient: Adam divides by its size, and tiny ones have few right digits.
        after = update(flat, data[f"gradient{step}"], moments, step + 1, optimiser == "sgd")
        close(f"step {step}", data[f"weights{step + 1}"] - flat, after - flat, 1e-3)
    flat = data["weights2"]
    decoders = networks(flat, ranks if server else 1)
    codes = data["codes"].reshape(ranks, mu // 16, 4)
    for r in range(ranks):
        code = Stack(flat, ENCODER, Conv).forward(x[r][None])
        close(f"code of {r}", codes[r].T, code, 1e-4)
        y = decoders[r if server else 0].forward(code, innovation[r] if server else None)
        close(f"reconstruction of {r}", data["y"].reshape(ranks, mu)[r], y, 1e-4)


def main():
    cases = [(mu, ranks, instance, optimiser) for mu in (16, 208) for ranks in (2, 3)
             for instance in ("ring", "server") for optimiser in ("adam", "sgd")] + [(64, 1, "ring", "adam")]
    failed = 0
    print(f"1..{len(cases)}")
    for number, case in enumerate(cases, 1):
        name = "mu {}, {} ranks, {}, {}".format(*case)
        try:
            check(sys.argv[1], *case)
            print(f"ok {number} - {name}")
        except (AssertionError, subprocess.CalledProcessError) as why:
            print(f"not ok {number} - {name}\n# {why}")
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
