//! Sums of gradients where they were computed: NVIDIA's NCCL between GPUs, one process for each; or through the memory of the host and the
//! run's [`Collective`], which also serves several ranks on one GPU.
//!
//! NCCL is a library of the machine that computes, found when it is asked for ([`library`]): nothing of it is
//! needed to build or to start this program. It adds in an order of its own, which whole numbers do not depend on: so it adds up both
//! kinds of [`Reduction`](crate::reduce::Reduction). Everything but gradients (rendezvous, comparisons,
//! losses, checkpoints) stays with the run's collective, which also detects lost ranks: before each sum all
//! ranks meet there, and none enters a sum that a dead rank would never leave.

pub mod communicator;
#[cfg(feature = "cuda")]
mod cuda;
pub mod library;

use std::time::Duration;

use burn::tensor::{Device, Int, Tensor, TensorData};
use thiserror::Error;

use super::sums::{TuningTable, all_reduce, all_reduce_in};
use super::{Collective, CollectiveError};
use crate::device::DeviceName;
use crate::dtype::ReduceDtype;
use crate::flat_block::{from_numbers, to_numbers};

/// The transport of gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// The run's collective, through the memory of the host.
    #[default]
    Host,
    /// NCCL, from GPU to GPU.
    Nccl {
        /// How long an operation may take before the communicator is given up.
        timeout: Duration,
    },
}

/// Why there is no NCCL.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum NcclError {
    /// The program was built without it.
    #[error(
        "this shardtrain has no CUDA, and so no NCCL; build it with `cargo build --features cuda` or leave --transport out"
    )]
    NoCuda,
    /// It connects GPUs.
    #[error("NCCL adds up values on GPUs, and --device is {0}; give --device cuda, or leave --transport out")]
    Device(DeviceName),
    /// It does not add up numbers of 16 bits or less.
    #[error(
        "NCCL adds up gradients in 32 bits and exact sums in 64: leave out --compress and --reduce-dtype, or --transport"
    )]
    Reduction,
    /// The library is not where one looks for it.
    #[error(
        "NCCL cannot be loaded from {}; install libnccl.so.2 (pip's nvidia-nccl-cu13 has it), and put its folder into LD_LIBRARY_PATH or its path into SHARDD_NCCL",
        tried.join(", ")
    )]
    NotFound { tried: Vec<String>, source: libloading::Error },
    /// The library is not NCCL, or too old.
    #[error("{path} is not an NCCL of version 2.18 or later: it lacks {symbol}")]
    Symbol { path: String, symbol: &'static str },
    /// The library is too old.
    #[error("{path} is NCCL {}, and 2.18 is the oldest that is understood; install a newer one", library::version_name(*version))]
    TooOld { path: String, version: i32 },
    /// NCCL connects GPUs, not processes that share one.
    #[error(
        "ranks {first} and {second} are on the same GPU ({uuid}), which NCCL refuses; give each a --device of its own, or leave --transport out"
    )]
    Shared { first: u32, second: u32, uuid: String },
    /// A call of NCCL failed.
    #[error("NCCL failed to {what}: {message}")]
    Call { what: &'static str, message: String },
    /// The driver failed.
    #[error("the CUDA driver failed to {what}: {message}")]
    Driver { what: &'static str, message: String },
    /// Other ranks did not reach it.
    #[error("NCCL did not {what} within {waited:?} (the limit is --timeout)")]
    Late { what: &'static str, waited: Duration },
}

impl NcclError {
    /// Whether something else should have been asked for.
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::NoCuda | Self::Device(_) | Self::Reduction | Self::NotFound { .. } | Self::Shared { .. }
        )
    }
}

/// Adds up gradients that are on a device.
pub trait DeviceSums: Send + std::fmt::Debug {
    /// The sum of all ranks' flat tensors of one length and 32 bits, on the device; the same bits on all of them. All ranks call this in the same
    /// order.
    ///
    /// # Errors
    /// Names the rank that is gone or late; then every later operation fails.
    fn all_reduce(
        &mut self,
        mine: Tensor<1>,
        collective: &mut dyn Collective,
    ) -> Result<Tensor<1>, CollectiveError>;

    /// The same of whole numbers of 64 bits, which wrap around. Each is two numbers of 32 bits of the tensor, the lower half first.
    ///
    /// # Errors
    /// As [`DeviceSums::all_reduce`].
    fn all_reduce_whole(
        &mut self,
        mine: Tensor<1, Int>,
        collective: &mut dyn Collective,
    ) -> Result<Tensor<1, Int>, CollectiveError>;
}

/// Through the memory of the host.
#[derive(Clone, Debug, Default)]
pub struct Staged {
    /// In these numbers.
    pub dtype: ReduceDtype,
    /// By these algorithms; none is the built-in table.
    pub table: Option<TuningTable>,
}

impl DeviceSums for Staged {
    fn all_reduce(
        &mut self,
        mine: Tensor<1>,
        collective: &mut dyn Collective,
    ) -> Result<Tensor<1>, CollectiveError> {
        let device = mine.device();
        let mut numbers = to_numbers(mine);
        all_reduce_in(self.dtype, self.table.as_ref(), collective, &mut numbers)?;
        Ok(from_numbers(numbers, &device))
    }

    fn all_reduce_whole(
        &mut self,
        mine: Tensor<1, Int>,
        collective: &mut dyn Collective,
    ) -> Result<Tensor<1, Int>, CollectiveError> {
        let (device, dtype) = (mine.device(), mine.dtype());
        let mut sums = sums_of(mine.into_data());
        all_reduce(collective, &mut sums)?;
        let words: Vec<i32> = sums.iter().flat_map(|sum| [*sum as i32, (sum >> 32) as i32]).collect();
        let count = [words.len()];
        Ok(Tensor::from_data(TensorData::new(words, count), (&device, dtype)))
    }
}

/// Whole numbers of 64 bits from their halves, the lower one first.
pub(crate) fn sums_of(words: TensorData) -> Vec<i64> {
    let words: Vec<i32> = words.try_into_vec_as().expect("whole numbers of 32 bits");
    words.chunks_exact(2).map(|half| i64::from(half[1]) << 32 | i64::from(half[0] as u32)).collect()
}

/// NCCL between the GPUs of all ranks of a collective, who call this together. The outer error is the collective's.
///
/// # Errors
/// See [`NcclError`]; one that only a rank has, the others hear of as [`CollectiveError::Aborted`] when it gives up the run.
pub fn join(
    collective: &mut dyn Collective,
    name: DeviceName,
    device: &Device,
    timeout: Duration,
) -> Result<Result<Box<dyn DeviceSums>, NcclError>, CollectiveError> {
    #[cfg(feature = "cuda")]
    {
        cuda::join(collective, name, device, timeout)
    }
    #[cfg(not(feature = "cuda"))]
    {
        let _ = (collective, device, timeout);
        Ok(Err(match name {
            DeviceName::Cpu | DeviceName::Wgpu(_) => NcclError::Device(name),
            DeviceName::Cuda(_) => NcclError::NoCuda,
        }))
    }
}

/// The first two ranks on one GPU. `uuids` are those of the ranks' GPUs, in rank order.
pub fn shared<'a>(uuids: impl IntoIterator<Item = &'a [u8]>) -> Option<NcclError> {
    let mut seen = std::collections::BTreeMap::new();
    for (rank, uuid) in (0..).zip(uuids) {
        if let Some(first) = seen.insert(uuid, rank) {
            let uuid = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
            return Some(NcclError::Shared { first, second: rank, uuid });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use burn::tensor::DType;

    use super::*;
    use crate::collective::{spawn, threads};

    #[test]
    fn two_ranks_on_one_gpu_are_named() {
        let gpus: [&[u8]; 4] = [&[1, 2], &[3, 0xab], &[5, 6], &[3, 0xab]];
        assert!(shared(gpus[..3].iter().copied()).is_none());
        let message = shared(gpus).unwrap().to_string();
        assert!(message.contains("ranks 1 and 3") && message.contains("03ab"), "{message}");
    }

    #[test]
    fn there_is_no_nccl_without_a_gpu() {
        let mut alone = threads::world(1, Duration::from_secs(60)).remove(0);
        let refused = join(&mut alone, DeviceName::Cpu, &Device::flex(), Duration::from_secs(1)).unwrap();
        let error = refused.expect_err("the CPU is no GPU");
        assert!(error.is_usage() && error.to_string().contains("--device cuda"), "{error}");
    }

    #[test]
    fn sums_through_the_host_are_those_of_all_ranks() {
        let sums = spawn(3, |mut collective: threads::ThreadCollective| {
            let mine = [collective.rank() as f32, 10.0];
            let mine = Tensor::<1>::from_floats(mine, &Device::flex());
            let sums = |dtype| {
                to_numbers(Staged { dtype, table: None }.all_reduce(mine.clone(), &mut collective).unwrap())
            };
            [ReduceDtype::F32, ReduceDtype::Bf16].map(sums)
        });
        assert_eq!(sums, [[[3.0, 30.0], [3.0, 30.0]]; 3]);
    }

    #[test]
    fn whole_sums_through_the_host_carry_and_wrap_around() {
        let mine = [i64::from(u32::MAX), -1, i64::MAX, 1 << 40];
        let sums = spawn(3, |mut collective: threads::ThreadCollective| {
            let words: Vec<i32> = mine.iter().flat_map(|sum| [*sum as i32, (sum >> 32) as i32]).collect();
            let words = Tensor::from_data(TensorData::new(words, [8]), (&Device::flex(), DType::I32));
            sums_of(Staged::default().all_reduce_whole(words, &mut collective).unwrap().into_data())
        });
        let expected = mine.map(|number| number.wrapping_mul(3)).to_vec();
        assert_eq!(sums, [expected.clone(), expected.clone(), expected]);
    }
}
