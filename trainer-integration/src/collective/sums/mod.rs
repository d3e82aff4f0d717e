//! Sums over all ranks: the same bits on every rank, in an order that depends on the algorithm and the world, but on nothing else.
//!
//! Who wants bits that do not depend on the world either takes [`reduce`](crate::reduce). Which algorithm is the fastest, says
//! [`choose`].

mod choose;
mod compensated;
mod direct;
mod doubling;
mod hierarchical;
mod ring;
mod scattered;
mod table;
mod team;
mod tune;
mod two_tree;

use std::fmt;
use std::str::FromStr;

use bytemuck::Pod;
use half::bf16;
use half::slice::HalfFloatSliceExt;
use serde::{Deserialize, Serialize};

use super::numbers::Number;
use super::{Among, Collective, CollectiveError};
use crate::dtype::ReduceDtype;

pub use choose::{CROSSOVERS, Crossover, choose};
pub use table::{Measurement, TuningTable};
pub(crate) use team::Team;
pub use tune::{Tuned, TunedBy, tune};

/// The operation on the numbers of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Every rank gets the sums of all numbers.
    AllReduce,
    /// Every rank gets the sums of its [slice](super::slice_of).
    ReduceScatter,
    /// Every rank gets every other's [slice](super::slice_of).
    AllGather,
}

/// How numbers travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// Every rank sends each other one its slice, which adds them in rank order, and then each other one the sums. Two steps.
    Direct,
    /// The same from neighbour to neighbour, so that each sends to one and receives of one only. 2 (N - 1) steps.
    Ring,
    /// All numbers to the rank 1 away, then 2, 4, …: as many steps as N has binary digits, and as often all bytes. For all-reduce.
    Doubling,
    /// Up and down two binary trees, one half of the numbers each. About 2 log2 N steps, and one more for each 512 KiB; a rank
    /// sends at most twice its bytes. For all-reduce.
    TwoTree,
    /// Slices within a host, then their sums across hosts, then within the host again: of what crosses the network, each host
    /// sends every byte about twice, however many ranks it has. For all-reduce.
    Hierarchical,
    /// As [`Algorithm::Direct`], with the rounding error of each addition kept apart and added in the end: the error is about
    /// that of one rounding, however many ranks there are (Neumaier, 1974). For all-reduce.
    Compensated,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Algorithm; 6] = [
        Algorithm::Direct,
        Algorithm::Ring,
        Algorithm::Doubling,
        Algorithm::TwoTree,
        Algorithm::Hierarchical,
        Algorithm::Compensated,
    ];

    /// As it is called in tables and flags.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Direct => "direct",
            Algorithm::Ring => "ring",
            Algorithm::Doubling => "doubling",
            Algorithm::TwoTree => "two-tree",
            Algorithm::Hierarchical => "hierarchical",
            Algorithm::Compensated => "compensated",
        }
    }

    /// Whether it is one for the operation.
    pub fn does(self, operation: Operation) -> bool {
        matches!(self, Algorithm::Direct | Algorithm::Ring) || operation == Operation::AllReduce
    }

    /// Whether it may be the fastest all-reduce of ranks on these hosts. [`Algorithm::Compensated`] does more work than
    /// [`Algorithm::Direct`]; on one host, or with one rank on each, [`Algorithm::Hierarchical`] is another algorithm.
    pub fn may_be_fastest(self, hosts: &[u32]) -> bool {
        match self {
            Algorithm::Compensated => false,
            Algorithm::Hierarchical => is_hierarchy(hosts),
            Algorithm::Direct | Algorithm::Ring | Algorithm::Doubling | Algorithm::TwoTree => true,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = String;

    fn from_str(text: &str) -> Result<Algorithm, String> {
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == text).ok_or_else(|| {
            let names: Vec<&str> = Algorithm::ALL.into_iter().map(Algorithm::name).collect();
            format!("no all-reduce algorithm is called {text:?}; give one of {}", names.join(", "))
        })
    }
}

/// Whether there are several hosts, and several ranks on one of them.
fn is_hierarchy(hosts: &[u32]) -> bool {
    let is_alone = |host: &u32| hosts.iter().filter(|&other| other == host).count() == 1;
    !hosts.iter().all(|host| *host == hosts[0]) && !hosts.iter().all(is_alone)
}

/// Adds up the numbers of all ranks, in place, by the algorithm that [`choose`] takes for them.
///
/// # Errors
/// As [`Collective::transfer`]; the numbers are then of no use.
pub fn all_reduce<T: Number>(
    collective: &mut dyn Collective,
    numbers: &mut [T],
) -> Result<(), CollectiveError> {
    let algorithm = choose(Operation::AllReduce, size_of_val(numbers), collective.link(), collective.hosts());
    all_reduce_by(algorithm, collective, numbers)
}

/// As [`all_reduce`], by a certain algorithm.
///
/// # Errors
/// As [`all_reduce`].
pub fn all_reduce_by<T: Number>(
    algorithm: Algorithm,
    collective: &mut dyn Collective,
    numbers: &mut [T],
) -> Result<(), CollectiveError> {
    collective.begin(Among::All);
    let team = &mut Team::of_all(collective);
    match algorithm {
        Algorithm::Direct => {
            direct::reduce_scatter(team, numbers, team.world())?;
            direct::all_gather(team, numbers, team.world())
        }
        Algorithm::Ring => {
            ring::reduce_scatter(team, numbers)?;
            ring::all_gather(team, numbers)
        }
        Algorithm::Doubling => doubling::all_reduce(team, numbers),
        Algorithm::TwoTree => two_tree::all_reduce(team, numbers),
        Algorithm::Compensated => {
            compensated::reduce_scatter(team, numbers)?;
            direct::all_gather(team, numbers, team.world())
        }
        Algorithm::Hierarchical => hierarchical::all_reduce(collective, numbers),
    }
}

/// Adds up the numbers of all ranks: afterwards this rank's [slice](super::slice_of) of `numbers` holds the sums, and the rest is of no use.
///
/// # Errors
/// As [`all_reduce`].
///
/// # Panics
/// If the algorithm is not one for it.
pub fn reduce_scatter<T: Number>(
    algorithm: Algorithm,
    collective: &mut dyn Collective,
    numbers: &mut [T],
) -> Result<(), CollectiveError> {
    assert!(algorithm.does(Operation::ReduceScatter), "{} is for all-reduce", algorithm.name());
    collective.begin(Among::All);
    let team = &mut Team::of_all(collective);
    match algorithm {
        Algorithm::Ring => ring::reduce_scatter(team, numbers),
        _ => direct::reduce_scatter(team, numbers, team.world()),
    }
}

/// Fills `numbers` from every rank's [slice](super::slice_of) of them.
///
/// # Errors
/// As [`all_reduce`].
///
/// # Panics
/// If the algorithm is not one for it.
pub fn all_gather<T: Number>(
    algorithm: Algorithm,
    collective: &mut dyn Collective,
    numbers: &mut [T],
) -> Result<(), CollectiveError> {
    assert!(algorithm.does(Operation::AllGather), "{} is for all-reduce", algorithm.name());
    collective.begin(Among::All);
    let team = &mut Team::of_all(collective);
    match algorithm {
        Algorithm::Ring => ring::all_gather(team, numbers),
        _ => direct::all_gather(team, numbers, team.world()),
    }
}

/// Fills `numbers` from every rank's [slice](super::slice_of) of them, as the last step of an operation that has begun.
pub(crate) fn gather_slices<T: Pod>(
    collective: &mut dyn Collective,
    numbers: &mut [T],
) -> Result<(), CollectiveError> {
    let team = &mut Team::of_all(collective);
    direct::all_gather(team, numbers, team.world())
}

/// Gathers pieces that lie anywhere, inside groups of ranks: all of a group list the same with the places of their owners, and afterwards each has all of
/// them. `members` is the group of this rank.
///
/// # Errors
/// As [`all_reduce`].
pub(crate) fn gather_pieces<T: Pod>(
    collective: &mut dyn Collective,
    members: &[u32],
    pieces: Vec<(u32, &mut [T])>,
) -> Result<(), CollectiveError> {
    collective.begin(Among::All);
    gather_more(collective, members, pieces)
}

/// The same as the last step of an operation that has begun.
pub(crate) fn gather_more<T: Pod>(
    collective: &mut dyn Collective,
    members: &[u32],
    pieces: Vec<(u32, &mut [T])>,
) -> Result<(), CollectiveError> {
    scattered::all_gather(&mut Team::of(collective, members.to_vec()), pieces)
}

/// Adds up the numbers of all ranks, in place, in an order that depends on the world ([module](self)), by the algorithm that
/// `table` has for their bytes; without a table, by that of [`choose`].
///
/// # Errors
/// As [`all_reduce`].
pub(crate) fn all_reduce_in(
    dtype: ReduceDtype,
    table: Option<&TuningTable>,
    collective: &mut dyn Collective,
    numbers: &mut [f32],
) -> Result<(), CollectiveError> {
    match dtype {
        ReduceDtype::F32 => all_reduce_with(table, collective, numbers),
        ReduceDtype::Bf16 => {
            let mut halves = vec![bf16::ZERO; numbers.len()];
            halves.convert_from_f32_slice(numbers);
            all_reduce_with(table, collective, &mut halves)?;
            halves.convert_to_f32_slice(numbers);
            Ok(())
        }
    }
}

fn all_reduce_with<T: Number>(
    table: Option<&TuningTable>,
    collective: &mut dyn Collective,
    numbers: &mut [T],
) -> Result<(), CollectiveError> {
    match table {
        Some(table) => all_reduce_by(table.algorithm(size_of_val(numbers)), collective, numbers),
        None => all_reduce(collective, numbers),
    }
}

#[cfg(test)]
mod tests;
