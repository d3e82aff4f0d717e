//! Which algorithm is used where the ranks have measured nothing. Pure: sizes in, a choice out. What ranks measure is in
//! `table.rs`.

use super::{Algorithm, Operation, is_hierarchy};
use crate::collective::Link;

/// Up to this number of bytes, all of a rank's, the algorithm is the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossover {
    /// The link of messages.
    pub link: Link,
    /// The smallest world that it is for; a later line for a larger one goes before.
    pub world: u32,
    /// How many bytes at most.
    pub bytes: usize,
    /// The fastest algorithm then.
    pub algorithm: Algorithm,
}

const fn line(link: Link, world: u32, bytes: usize, algorithm: Algorithm) -> Crossover {
    Crossover { link, world, bytes, algorithm }
}

/// For all-reduce, as measured with `shardtrain bench-comm` on one host of two cores, worlds of 2, 4 and 16, in November 2026: see
/// benches/README.md, "Collectives". Ring was never much faster there than direct, and two-tree was not measured. On a network
/// that many senders to one receiver bring to its knees they may be faster, and [`tune`](super::tune) finds that out.
pub const CROSSOVERS: [Crossover; 6] = [
    line(Link::Memory, 2, 64 << 10, Algorithm::Doubling),
    line(Link::Memory, 2, usize::MAX, Algorithm::Direct),
    line(Link::Network, 2, 64 << 10, Algorithm::Doubling),
    line(Link::Network, 2, usize::MAX, Algorithm::Direct),
    line(Link::Network, 9, 256 << 10, Algorithm::Doubling),
    line(Link::Network, 9, usize::MAX, Algorithm::Direct),
];

/// The algorithm for a number of bytes in a world of these hosts: across hosts whose ranks share a machine,
/// hierarchical.
pub fn choose(operation: Operation, bytes: usize, link: Link, hosts: &[u32]) -> Algorithm {
    let world = hosts.len() as u32;
    let lines = CROSSOVERS.iter().filter(|line| line.link == link && line.world <= world.max(2));
    let largest = lines.clone().map(|line| line.world).max();
    let found = lines.filter(|line| Some(line.world) == largest).find(|line| bytes <= line.bytes);
    let fastest = found.map_or(Algorithm::Direct, |line| line.algorithm);
    if operation == Operation::AllReduce && is_hierarchy(hosts) {
        Algorithm::Hierarchical
    } else if fastest.does(operation) {
        fastest
    } else {
        Algorithm::Direct
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_world_and_size_has_an_algorithm_that_does_the_operation() {
        for link in [Link::Memory, Link::Network] {
            for world in 1..=64usize {
                for bytes in [0, 1, 4 << 10, 1 << 20, 64 << 20, usize::MAX] {
                    for operation in [Operation::AllReduce, Operation::ReduceScatter, Operation::AllGather] {
                        assert!(choose(operation, bytes, link, &vec![0; world]).does(operation));
                    }
                }
            }
        }
    }

    #[test]
    fn hosts_with_several_ranks_each_are_a_hierarchy() {
        let of = |hosts: &[u32]| choose(Operation::AllReduce, 64 << 20, Link::Network, hosts);
        assert_eq!(of(&[0, 0, 1, 1]), Algorithm::Hierarchical);
        assert_eq!(of(&[0, 0, 1]), Algorithm::Hierarchical);
        assert_ne!(of(&[0, 1, 2, 3]), Algorithm::Hierarchical);
        assert_ne!(of(&[0, 0, 0, 0]), Algorithm::Hierarchical);
        assert_ne!(choose(Operation::AllGather, 1, Link::Network, &[0, 0, 1]), Algorithm::Hierarchical);
    }

    #[test]
    fn a_line_for_more_bytes_comes_later() {
        assert!(CROSSOVERS.windows(2).all(|pair| {
            (pair[0].link, pair[0].world) != (pair[1].link, pair[1].world) || pair[0].bytes < pair[1].bytes
        }));
    }
}
