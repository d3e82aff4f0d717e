//! Fourier transforms of eight signals at once.
//!
//! A vector holds the same element of eight signals, so that every butterfly of every radix is plain arithmetic on whole
//! vectors: nothing is shuffled, the compiler vectorises it for any processor, and the bits are the same on all. Lengths
//! with other prime factors than 2, 3 and 5 take the way of Bluestein ("A linear filtering approach to the computation of
//! discrete Fourier transform", 1970).

use std::array::from_fn;
use std::ops::{Add, Mul, Sub};

use crate::math::turn;

/// Signals that are transformed together.
pub(crate) const LANES: usize = 8;

/// One number of each signal.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(align(32))]
pub(crate) struct Lanes(pub(crate) [f32; LANES]);

impl Add for Lanes {
    type Output = Self;

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(from_fn(|lane| self.0[lane] + other.0[lane]))
    }
}

impl Sub for Lanes {
    type Output = Self;

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Self(from_fn(|lane| self.0[lane] - other.0[lane]))
    }
}

impl Mul for Lanes {
    type Output = Self;

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Self(from_fn(|lane| self.0[lane] * other.0[lane]))
    }
}

impl Mul<f32> for Lanes {
    type Output = Self;

    #[inline(always)]
    fn mul(self, factor: f32) -> Self {
        Self(from_fn(|lane| self.0[lane] * factor))
    }
}

/// One complex number of each signal.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Complex {
    pub(crate) re: Lanes,
    pub(crate) im: Lanes,
}

impl Complex {
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        Self { re: self.re + other.re, im: self.im + other.im }
    }

    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        Self { re: self.re - other.re, im: self.im - other.im }
    }

    /// `self - i * other`.
    #[inline(always)]
    fn minus_i_times(self, other: Self) -> Self {
        Self { re: self.re + other.im, im: self.im - other.re }
    }

    /// `self + i * other`.
    #[inline(always)]
    fn plus_i_times(self, other: Self) -> Self {
        Self { re: self.re - other.im, im: self.im + other.re }
    }

    #[inline(always)]
    fn scaled(self, factor: f32) -> Self {
        Self { re: self.re * factor, im: self.im * factor }
    }

    #[inline(always)]
    fn times(self, [re, im]: [f32; 2]) -> Self {
        Self { re: self.re * re - self.im * im, im: self.re * im + self.im * re }
    }

    fn conjugate(self) -> Self {
        Self { re: self.re, im: self.im * -1.0 }
    }
}

/// A transform of some length: `X[k] = sum x[i] * exp(-2 pi i k / length)`.
#[derive(Clone, Debug)]
pub(crate) struct Fft {
    len: usize,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// Decimation in time: stages over a buffer whose order was turned when it was filled.
    Mixed { places: Vec<u32>, stages: Vec<Stage> },
    /// A convolution with a chirp, by transforms of a power of two.
    Chirp { chirp: Vec<[f32; 2]>, filter: Vec<[f32; 2]>, inner: Box<Fft> },
}

/// Joins transforms of length `span` to transforms of length `radix * span`.
#[derive(Clone, Debug)]
struct Stage {
    radix: usize,
    span: usize,
    /// `exp(-2 pi leg at / (radix * span))`, the legs of one place side by side.
    twiddles: Vec<[f32; 2]>,
}

impl Fft {
    /// A transform of this length, which is not 0.
    pub(crate) fn new(len: usize) -> Self {
        let kind = match factors(len) {
            Some(radices) => Kind::Mixed { places: places(len, &radices), stages: stages(&radices) },
            None => chirp(len),
        };
        Self { len, kind }
    }

    /// Numbers that the buffer needs. The first `len` are input and output.
    pub(crate) fn buffer_len(&self) -> usize {
        match &self.kind {
            Kind::Mixed { .. } => self.len,
            Kind::Chirp { inner, .. } => self.len + 2 * inner.len,
        }
    }

    /// Where in the buffer each element of the input has to be.
    pub(crate) fn places(&self) -> Vec<u32> {
        match &self.kind {
            Kind::Mixed { places, .. } => places.clone(),
            Kind::Chirp { .. } => (0..self.len as u32).collect(),
        }
    }

    /// Transforms a buffer of [`buffer_len`](Self::buffer_len); the result is in natural order.
    pub(crate) fn run(&self, buffer: &mut [Complex]) {
        match &self.kind {
            Kind::Mixed { stages, .. } => stages.iter().for_each(|stage| stage.run(&mut buffer[..self.len])),
            Kind::Chirp { chirp, filter, inner } => convolve(buffer, chirp, filter, inner),
        }
    }
}

/// The factors 4, 5, 3 and 2 of a length, in the order of the stages; none if it has others.
fn factors(mut len: usize) -> Option<Vec<usize>> {
    let mut radices = Vec::new();
    for radix in [4, 2, 3, 5] {
        while len.is_multiple_of(radix) {
            radices.push(radix);
            len /= radix;
        }
    }
    (len == 1).then_some(radices)
}

/// The place of each element before the first stage: an element's digits to the radices, turned around.
fn places(len: usize, radices: &[usize]) -> Vec<u32> {
    let place = |mut element: usize| {
        let mut span = len;
        let mut place = 0;
        for &radix in radices.iter().rev() {
            span /= radix;
            place += element % radix * span;
            element /= radix;
        }
        place as u32
    };
    (0..len).map(place).collect()
}

fn stages(radices: &[usize]) -> Vec<Stage> {
    let mut span = 1;
    let mut stages = Vec::new();
    for &radix in radices {
        let mut twiddles = Vec::with_capacity(span * radix);
        for at in 0..span {
            twiddles.extend((0..radix).map(|leg| negative_turn(leg * at, radix * span)));
        }
        stages.push(Stage { radix, span, twiddles });
        span *= radix;
    }
    stages
}

/// `exp(-2 pi i numerator / denominator)`.
fn negative_turn(numerator: usize, denominator: usize) -> [f32; 2] {
    let [cos, sin] = turn(numerator as u64, denominator as u64);
    [cos as f32, -sin as f32]
}

impl Stage {
    fn run(&self, buffer: &mut [Complex]) {
        match self.radix {
            2 => self.pass(buffer, |[a, b]: [Complex; 2]| [a.plus(b), a.minus(b)]),
            3 => self.pass(buffer, radix3),
            4 => self.pass(buffer, radix4),
            _ => self.pass(buffer, radix5),
        }
    }

    #[inline(always)]
    fn pass<const R: usize>(&self, buffer: &mut [Complex], butterfly: impl Fn([Complex; R]) -> [Complex; R]) {
        let span = self.span;
        for block in buffer.chunks_exact_mut(R * span) {
            // All twiddles of the first place are 1.
            let joined = butterfly(from_fn(|leg| block[leg * span]));
            (0..R).for_each(|leg| block[leg * span] = joined[leg]);
            for (at, twiddles) in self.twiddles.chunks_exact(R).enumerate().skip(1) {
                let legs = from_fn(|leg| match leg {
                    0 => block[at],
                    _ => block[leg * span + at].times(twiddles[leg]),
                });
                let joined = butterfly(legs);
                (0..R).for_each(|leg| block[leg * span + at] = joined[leg]);
            }
        }
    }
}

#[inline(always)]
fn radix3([a, b, c]: [Complex; 3]) -> [Complex; 3] {
    /// The sine of a third of a turn.
    const SINE: f32 = 0.866_025_4;
    let [sum, difference] = [b.plus(c), b.minus(c).scaled(SINE)];
    let middle = a.minus(sum.scaled(0.5));
    [a.plus(sum), middle.minus_i_times(difference), middle.plus_i_times(difference)]
}

#[inline(always)]
fn radix4([a, b, c, d]: [Complex; 4]) -> [Complex; 4] {
    let [even, odd] = [a.plus(c), a.minus(c)];
    let [sum, difference] = [b.plus(d), b.minus(d)];
    [even.plus(sum), odd.minus_i_times(difference), even.minus(sum), odd.plus_i_times(difference)]
}

#[inline(always)]
fn radix5([a, b, c, d, e]: [Complex; 5]) -> [Complex; 5] {
    /// Cosines and sines of one and two fifths of a turn.
    const COSINES: [f32; 2] = [0.309_017, -0.809_017];
    const SINES: [f32; 2] = [0.951_056_5, 0.587_785_24];
    let [outer, inner] = [b.plus(e), c.plus(d)];
    let [outer_i, inner_i] = [b.minus(e), c.minus(d)];
    let one = a.plus(outer.scaled(COSINES[0])).plus(inner.scaled(COSINES[1]));
    let two = a.plus(outer.scaled(COSINES[1])).plus(inner.scaled(COSINES[0]));
    let one_i = outer_i.scaled(SINES[0]).plus(inner_i.scaled(SINES[1]));
    let two_i = outer_i.scaled(SINES[1]).minus(inner_i.scaled(SINES[0]));
    [
        a.plus(outer).plus(inner),
        one.minus_i_times(one_i),
        two.minus_i_times(two_i),
        two.plus_i_times(two_i),
        one.plus_i_times(one_i),
    ]
}

/// The tables of a transform by convolution.
fn chirp(len: usize) -> Kind {
    let inner = Fft::new((2 * len - 1).next_power_of_two());
    let chirp: Vec<[f32; 2]> = (0..len).map(|i| negative_turn(i * i, 2 * len)).collect();
    let places = inner.places();
    let mut buffer = vec![Complex::default(); inner.buffer_len()];
    for (at, &[re, im]) in chirp.iter().enumerate() {
        let conjugate = Complex { re: Lanes([re; LANES]), im: Lanes([-im; LANES]) };
        buffer[places[at] as usize] = conjugate;
        buffer[places[(inner.len - at) % inner.len] as usize] = conjugate;
    }
    inner.run(&mut buffer);
    let scale = 1.0 / inner.len as f32;
    let filter = buffer.iter().map(|value| [value.re.0[0] * scale, value.im.0[0] * scale]).collect();
    Kind::Chirp { chirp, filter, inner: Box::new(inner) }
}

fn convolve(buffer: &mut [Complex], chirp: &[[f32; 2]], filter: &[[f32; 2]], inner: &Fft) {
    let (signal, work) = buffer.split_at_mut(chirp.len());
    let (one, two) = work.split_at_mut(inner.len);
    let Kind::Mixed { places, .. } = &inner.kind else { return };
    one.fill(Complex::default());
    for ((&value, &factor), &place) in signal.iter().zip(chirp).zip(places) {
        one[place as usize] = value.times(factor);
    }
    inner.run(one);
    // The inverse transform is that of the conjugate, conjugated.
    for ((&value, &factor), &place) in one.iter().zip(filter).zip(places) {
        two[place as usize] = value.times(factor).conjugate();
    }
    inner.run(two);
    for ((value, &product), &factor) in signal.iter_mut().zip(&*two).zip(chirp) {
        *value = product.conjugate().times(factor);
    }
}

/// A transform of real signals. An even length takes a complex one of half of it (Sorensen et al., "Real-valued fast
/// Fourier transform algorithms", 1987).
#[derive(Clone, Debug)]
pub(crate) struct RealFft {
    len: usize,
    fft: Fft,
    places: Vec<u32>,
    /// `exp(-2 pi i k / len)` for the first half of the bins.
    twiddles: Vec<[f32; 2]>,
}

impl RealFft {
    /// A transform of this length, which is not 0.
    pub(crate) fn new(len: usize) -> Self {
        let fft = Fft::new(if len.is_multiple_of(2) { len / 2 } else { len });
        let twiddles = (0..=len / 4).map(|k| negative_turn(k, len)).collect();
        Self { len, places: fft.places(), fft, twiddles }
    }

    /// Bins of the result: those of no negative frequency.
    pub(crate) fn bins(&self) -> usize {
        self.len / 2 + 1
    }

    /// An empty buffer.
    pub(crate) fn buffer(&self) -> Vec<Complex> {
        vec![Complex::default(); self.fft.buffer_len()]
    }

    /// Fills a buffer with windowed frames of the window's length.
    pub(crate) fn fill(&self, frames: [&[f32]; LANES], window: &[f32], buffer: &mut [Complex]) {
        if self.len.is_multiple_of(2) {
            for ((at, &place), pair) in self.places.iter().enumerate().zip(window.chunks_exact(2)) {
                let slot = &mut buffer[place as usize];
                for (lane, frame) in frames.iter().enumerate() {
                    slot.re.0[lane] = frame[2 * at] * pair[0];
                    slot.im.0[lane] = frame[2 * at + 1] * pair[1];
                }
            }
        } else {
            for ((at, &place), &factor) in self.places.iter().enumerate().zip(window) {
                let re = Lanes(from_fn(|lane| frames[lane][at] * factor));
                buffer[place as usize] = Complex { re, im: Lanes::default() };
            }
        }
    }

    /// The squares of the magnitudes of the bins of a filled buffer.
    pub(crate) fn squares(&self, buffer: &mut [Complex], squares: &mut [Lanes]) {
        self.fft.run(buffer);
        let squared = |value: Complex| value.re * value.re + value.im * value.im;
        if !self.len.is_multiple_of(2) {
            for (square, &value) in squares.iter_mut().zip(&*buffer) {
                *square = squared(value);
            }
            return;
        }
        let half = self.len / 2;
        let Complex { re, im } = buffer[0];
        let [first, last] = [re + im, re - im];
        squares[0] = first * first;
        squares[half] = last * last;
        for k in 1..=half / 2 {
            let [value, mirror] = [buffer[k], buffer[half - k].conjugate()];
            let even = value.plus(mirror).scaled(0.5);
            let odd = value.minus(mirror).scaled(0.5).times(self.twiddles[k]);
            squares[k] = squared(even.minus_i_times(odd));
            squares[half - k] = squared(even.plus_i_times(odd));
        }
    }
}

#[cfg(test)]
mod tests;
