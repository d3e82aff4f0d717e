//! Inside hosts, across them, inside again. As many ranks of each host as its smallest has are its owners; owner i of one host
//! and owner i of every other have the same slice.

use super::choose::choose;
use super::team::Team;
use super::{Algorithm, Operation, direct, doubling, ring, two_tree};
use crate::collective::numbers::Number;
use crate::collective::{Collective, CollectiveError, Link};

pub(super) fn all_reduce<T: Number>(
    collective: &mut dyn Collective,
    numbers: &mut [T],
) -> Result<(), CollectiveError> {
    let hosts = by_host(collective.hosts());
    let owners = hosts.iter().map(Vec::len).min().unwrap_or(1);
    let host = hosts.iter().find(|ranks| ranks.contains(&collective.rank()));
    let host = host.expect("every rank is on a host");

    let mut inside = Team::of(collective, host.clone());
    let place = inside.rank();
    direct::reduce_scatter(&mut inside, numbers, owners as u32)?;

    let own = direct::owned(numbers.len(), place, owners as u32);
    if (place as usize) < owners && hosts.len() > 1 {
        let column = hosts.iter().map(|ranks| ranks[place as usize]).collect();
        let own = &mut numbers[own];
        let apart: Vec<u32> = (0..hosts.len() as u32).collect();
        let mut across = Team::of(collective, column);
        match choose(Operation::AllReduce, size_of_val(own), Link::Network, &apart) {
            Algorithm::Doubling => doubling::all_reduce(&mut across, own)?,
            Algorithm::TwoTree => two_tree::all_reduce(&mut across, own)?,
            Algorithm::Ring => {
                ring::reduce_scatter(&mut across, own)?;
                ring::all_gather(&mut across, own)?;
            }
            Algorithm::Direct | Algorithm::Hierarchical | Algorithm::Compensated => {
                direct::reduce_scatter(&mut across, own, apart.len() as u32)?;
                direct::all_gather(&mut across, own, apart.len() as u32)?;
            }
        }
    }
    direct::all_gather(&mut Team::of(collective, host.clone()), numbers, owners as u32)
}

/// The ranks of each host, in rank order, hosts by their first rank.
fn by_host(hosts: &[u32]) -> Vec<Vec<u32>> {
    let mut found: Vec<(u32, Vec<u32>)> = Vec::new();
    for (rank, &host) in hosts.iter().enumerate() {
        match found.iter_mut().find(|(other, _)| *other == host) {
            Some((_, ranks)) => ranks.push(rank as u32),
            None => found.push((host, vec![rank as u32])),
        }
    }
    found.into_iter().map(|(_, ranks)| ranks).collect()
}
