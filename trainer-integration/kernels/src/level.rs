//! Which instructions compute.

use std::fmt;
use std::sync::LazyLock;

use pulp::{Scalar, Simd, WithSimd};

/// A set of vector instructions. All of them compute the same bits.
#[derive(Clone, Copy, Debug)]
pub struct Level(Instructions);

#[derive(Clone, Copy, Debug)]
enum Instructions {
    #[cfg(target_arch = "x86_64")]
    Avx512(pulp::x86::V4),
    #[cfg(target_arch = "x86_64")]
    Avx2(pulp::x86::V3),
    #[cfg(target_arch = "aarch64")]
    Neon(pulp::aarch64::Neon),
    Scalar,
}

static BEST: LazyLock<Level> = LazyLock::new(|| Level::available()[0]);

impl Level {
    /// The fastest of this processor.
    pub fn best() -> Level {
        *BEST
    }

    /// Those of this processor, the fastest first. The last needs no vector instructions.
    pub fn available() -> Vec<Level> {
        let mut levels = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            levels.extend(pulp::x86::V4::try_new().map(Instructions::Avx512));
            levels.extend(pulp::x86::V3::try_new().map(Instructions::Avx2));
        }
        #[cfg(target_arch = "aarch64")]
        levels.extend(pulp::aarch64::Neon::try_new().map(Instructions::Neon));
        levels.push(Instructions::Scalar);
        levels.into_iter().map(Level).collect()
    }

    /// `avx512`, `avx2`, `neon` or `scalar`.
    pub fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2(_) => "avx2",
            #[cfg(target_arch = "aarch64")]
            Instructions::Neon(_) => "neon",
            Instructions::Scalar => "scalar",
        }
    }

    /// With vectors of at most 256 bits: those of loops that the compiler makes vectors of, which are slower with AVX-512 than with AVX2.
    pub(crate) fn narrow(self) -> Level {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512(simd) => Level(Instructions::Avx2(*simd)),
            _ => self,
        }
    }

    /// Numbers in a vector.
    pub(crate) fn lanes(self) -> usize {
        struct Lanes;
        impl WithSimd for Lanes {
            type Output = usize;
            fn with_simd<S: Simd>(self, _: S) -> usize {
                S::F32_LANES
            }
        }
        self.run(Lanes)
    }

    /// Runs an operation, compiled for these instructions.
    pub(crate) fn run<Op: WithSimd>(self, operation: Op) -> Op::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512(simd) => Simd::vectorize(simd, operation),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2(simd) => Simd::vectorize(simd, operation),
            #[cfg(target_arch = "aarch64")]
            Instructions::Neon(simd) => Simd::vectorize(simd, operation),
            Instructions::Scalar => Simd::vectorize(Scalar::new(), operation),
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
