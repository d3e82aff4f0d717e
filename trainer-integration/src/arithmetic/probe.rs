//! Whether two machines compute the same bits: digests of small computations, compared before ranks train together.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use burn::tensor::activation;
use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};
use shardd_kernels::Level;
use shardfmt::Digest;

use super::{gelu, layer_norm_rows, matmul, softmax};

/// burn's own products and functions, which the models of shardd do without. The functions are those of the system's C library.
const BURNS: [&str; 2] = ["burn's products", "burn's functions"];

/// The bits of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Probe {
    /// The vector instructions that products use.
    pub(crate) instructions: String,
    /// A digest for each kind of operation.
    pub(crate) bits: BTreeMap<String, Digest>,
}

static OF_THIS_MACHINE: LazyLock<Probe> = LazyLock::new(Probe::compute);

impl Probe {
    /// Of this machine, computed once in a process: some milliseconds.
    pub(crate) fn of_this_machine() -> &'static Probe {
        &OF_THIS_MACHINE
    }

    fn compute() -> Probe {
        let kinds = [
            ("products", products()),
            ("sums", sums()),
            ("functions", functions()),
            (BURNS[0], burns_products()),
            (BURNS[1], burns_functions()),
        ];
        let bits = kinds.map(|(kind, numbers)| (kind.to_owned(), digest(numbers)));
        Probe { instructions: Level::best().name().to_owned(), bits: bits.into() }
    }

    /// One word for all of it but burn's own operations.
    pub(crate) fn word(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        self.bits.iter().filter(|(kind, _)| !BURNS.contains(&kind.as_str())).for_each(|(_, digest)| {
            hasher.update(&digest.0);
        });
        Digest(*hasher.finalize().as_bytes()).short().to_string()
    }

    /// The kinds of operations whose bits differ.
    fn differing(&self, other: &Probe) -> Vec<&str> {
        let kinds = self.bits.iter().filter(|(kind, digest)| other.bits.get(*kind) != Some(digest));
        kinds.map(|(kind, _)| kind.as_str()).collect()
    }
}

/// The first rank that differs from rank 0.
#[derive(Debug, PartialEq)]
pub(crate) struct Complaint {
    pub(crate) rank: u32,
    /// The kinds of operations whose bits differ.
    pub(crate) operations: String,
    /// Its instructions, and those of the other.
    pub(crate) theirs: String,
    pub(crate) ours: String,
    /// Whether the training uses them.
    pub(crate) is_certain: bool,
}

/// Compares those of all ranks; one on another device has none. `own_model`: it may use burn's own operations.
pub(crate) fn complaint(probes: &[Option<Probe>], own_model: bool) -> Option<Complaint> {
    let mut of_cpus = probes.iter().enumerate().filter_map(|(rank, probe)| Some((rank, probe.as_ref()?)));
    let (_, first) = of_cpus.next()?;
    let mut doubtful = None;
    for (rank, probe) in of_cpus {
        let (mut kinds, theirs) = (first.differing(probe), probe.instructions.clone());
        if !own_model {
            kinds.retain(|kind| !BURNS.contains(kind));
        }
        if kinds.is_empty() {
            continue;
        }
        let complaint = Complaint {
            rank: rank as u32,
            operations: kinds.join(", "),
            theirs,
            ours: first.instructions.clone(),
            is_certain: kinds.iter().any(|kind| !BURNS.contains(kind)),
        };
        if complaint.is_certain {
            return Some(complaint);
        }
        doubtful.get_or_insert(complaint);
    }
    doubtful
}

fn digest(numbers: Vec<u64>) -> Digest {
    let bytes: Vec<u8> = numbers.into_iter().flat_map(u64::to_le_bytes).collect();
    Digest::of(&bytes)
}

/// Numbers of either sign over some orders of magnitude.
fn numbers(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    (0..count).map(|_| (next() as f32 / 8_388_608.0 - 1.0) * (1 << (next() % 8)) as f32).collect()
}

fn tensor<const D: usize>(seed: u32, shape: [usize; D]) -> Tensor<D> {
    Tensor::from_data(TensorData::new(numbers(seed, shape.iter().product()), shape), &Device::flex())
}

fn bits<const D: usize>(tensor: Tensor<D>) -> impl Iterator<Item = u64> {
    let numbers = tensor.into_data().try_into_vec::<f32>().expect("numbers of 32 bits");
    numbers.into_iter().map(|number| u64::from(number.to_bits()))
}

fn products() -> Vec<u64> {
    bits(matmul(tensor(1, [65, 1100]), tensor(2, [1100, 65]))).collect()
}

fn burns_products() -> Vec<u64> {
    bits(tensor(1, [65, 1100]).matmul(tensor(2, [1100, 65]))).collect()
}

fn sums() -> Vec<u64> {
    let rows = tensor(3, [4, 1000]);
    let positive = rows.clone().abs();
    let (scale, shift) = (tensor(7, [1000]), tensor(8, [1000]));
    let normalised = layer_norm_rows(rows.clone(), scale, shift, 1e-5);
    let sums = bits(rows.clone().sum_dim(1)).chain(bits(rows.mean_dim(1)));
    sums.chain(bits(softmax(positive))).chain(bits(normalised)).collect()
}

fn functions() -> Vec<u64> {
    let of_hosts = numbers(6, 500).into_iter().map(f64::from);
    let of_hosts =
        of_hosts.flat_map(|x| [libm::exp(x), libm::log(x.abs().max(1e-3)), libm::cos(x)].map(f64::to_bits));
    let any = tensor(4, [5, 100]);
    bits(softmax(any.clone()))
        .chain(bits(gelu(any.clone())))
        .chain(bits(any.abs().sqrt()))
        .chain(of_hosts)
        .collect()
}

fn burns_functions() -> Vec<u64> {
    let (any, positive) = (tensor(4, [500]), tensor(5, [500]).abs() + 1e-3);
    let of_tensors = [
        any.clone().exp(),
        positive.clone().log(),
        any.clone().tanh(),
        activation::gelu(any.clone()),
        any.clone().cos(),
        positive.clone().sqrt(),
        positive.powf_scalar(0.3),
    ];
    let of_hosts = numbers(6, 500).into_iter().map(f64::from);
    let of_hosts = of_hosts.flat_map(|x| [x.exp(), x.abs().max(1e-3).ln(), x.cos()].map(f64::to_bits));
    of_tensors.into_iter().flat_map(bits).chain(of_hosts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_agrees_with_itself_whatever_its_threads() {
        let probe = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(Probe::compute)
        };
        assert_eq!(probe(1), probe(4));
        assert_eq!(*Probe::of_this_machine(), probe(2));
    }

    #[test]
    fn the_first_rank_that_computes_other_bits_is_named_with_the_operations() {
        let ours = Probe::of_this_machine().clone();
        let other = |kind: &str| {
            let mut probe = Probe { instructions: "elsewhere".to_owned(), ..ours.clone() };
            probe.bits.insert(kind.to_owned(), Digest::of(b"other bits"));
            Some(probe)
        };
        let same = || Some(ours.clone());
        assert_eq!(complaint(&[same(), same()], true), None);
        let found = complaint(&[same(), other(BURNS[0]), other("sums")], true).unwrap();
        assert_eq!((found.rank, &found.operations[..], &found.theirs[..]), (2, "sums", "elsewhere"));
        assert!(found.is_certain);
        let burns = || other(BURNS[1]);
        assert_eq!(complaint(&[same(), burns()], false), None, "no model of shardd uses them");
        let doubtful = complaint(&[same(), burns()], true).unwrap();
        assert!(!doubtful.is_certain && doubtful.operations == BURNS[1], "{doubtful:?}");
        assert_eq!(complaint(&[same(), None], false), None, "another device has no such bits");
        assert_eq!(complaint(&[None, same(), other("sums")], false).unwrap().rank, 2);
    }
}
