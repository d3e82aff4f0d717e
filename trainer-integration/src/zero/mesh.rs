//! Groups of ranks that share the numbers of a model; every group has all of them (hybrid sharding: Zhao et al., "PyTorch FSDP: experiences on
//! scaling fully sharded data parallel", VLDB 2023). Pure.

use std::fmt;
use std::num::NonZeroU32;

/// The ranks of a world, group by group, as one of them sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mesh {
    groups: Vec<Vec<u32>>,
    /// Which group, and which place in it.
    own: (usize, usize),
    are_inside_hosts: bool,
}

impl Mesh {
    /// Groups of `size` ranks, or one of all. `hosts` tells the machine of every rank: groups lie inside
    /// machines where these have room for whole groups.
    ///
    /// # Errors
    /// The possible group sizes, if not this one.
    ///
    /// # Panics
    /// If the rank is not one of them.
    pub fn new(hosts: &[u32], size: Option<NonZeroU32>, rank: u32) -> Result<Mesh, String> {
        let world = hosts.len();
        let size = size.map_or(world, |size| size.get() as usize);
        if !world.is_multiple_of(size) {
            let sizes: Vec<String> =
                (1..=world).filter(|size| world.is_multiple_of(*size)).map(|size| size.to_string()).collect();
            return Err(format!(
                "{world} ranks cannot form groups of {size}; give one of {}",
                sizes.join(", ")
            ));
        }
        let mut ranks: Vec<u32> = (0..world as u32).collect();
        ranks.sort_by_key(|rank| (hosts[*rank as usize], *rank));
        let groups: Vec<Vec<u32>> = ranks.chunks(size).map(<[u32]>::to_vec).collect();
        let is_inside = |group: &Vec<u32>| {
            group.windows(2).all(|pair| hosts[pair[0] as usize] == hosts[pair[1] as usize])
        };
        let are_inside_hosts = groups.iter().all(is_inside);
        let place = groups
            .iter()
            .enumerate()
            .find_map(|(index, group)| Some((index, group.iter().position(|member| *member == rank)?)));
        Ok(Mesh { groups, own: place.expect("a rank of the world"), are_inside_hosts })
    }

    /// How many ranks share the numbers.
    pub fn size(&self) -> u32 {
        self.groups[0].len() as u32
    }

    /// This rank's place among them.
    pub fn place(&self) -> u32 {
        self.own.1 as u32
    }

    /// The ranks of this rank's group, by their places.
    pub fn group(&self) -> &[u32] {
        &self.groups[self.own.0]
    }

    /// The ranks that keep what this one keeps, by their groups.
    pub fn replicas(&self) -> Vec<u32> {
        self.groups.iter().map(|group| group[self.own.1]).collect()
    }

    /// Group and place of another rank.
    pub(crate) fn of(&self, rank: u32) -> (u32, u32) {
        let found = self.groups.iter().enumerate().find_map(|(index, group)| {
            Some((index as u32, group.iter().position(|member| *member == rank)? as u32))
        });
        found.expect("a rank of the world")
    }

    /// The ranks of every group, by their places.
    pub fn groups(&self) -> &[Vec<u32>] {
        &self.groups
    }

    /// Whether all ranks of each group are on one machine.
    pub fn are_inside_hosts(&self) -> bool {
        self.are_inside_hosts
    }

    /// Whether the ranks of each group follow each other, and the groups as well.
    pub(crate) fn is_in_order(&self) -> bool {
        self.groups.iter().flatten().copied().eq(0..self.groups.iter().map(|group| group.len() as u32).sum())
    }

    /// How many groups there are.
    pub fn count(&self) -> u32 {
        self.groups.len() as u32
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups: Vec<String> = self.groups.iter().map(|group| format!("{group:?}")).collect();
        let where_to = if self.are_inside_hosts { "inside machines" } else { "across machines" };
        write!(f, "groups {where_to}: {}", groups.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mesh(hosts: &[u32], size: u32, rank: u32) -> Mesh {
        Mesh::new(hosts, NonZeroU32::new(size), rank).unwrap()
    }

    #[test]
    fn groups_lie_inside_machines_and_say_so() {
        let apart = [0, 1, 0, 1];
        assert_eq!(mesh(&apart, 2, 2).to_string(), "groups inside machines: [0, 2] [1, 3]");
        assert_eq!((mesh(&apart, 2, 2).place(), mesh(&apart, 2, 2).replicas()), (1, vec![2, 3]));
        assert_eq!(mesh(&[0, 0, 0, 1], 2, 0).to_string(), "groups across machines: [0, 1] [2, 3]");
        assert!(!mesh(&apart, 2, 0).is_in_order() && mesh(&[0, 0, 1, 1], 2, 3).is_in_order());
        assert_eq!(Mesh::new(&apart, None, 3).unwrap().group(), [0, 2, 1, 3]);
        let refusal = Mesh::new(&apart, NonZeroU32::new(3), 0).unwrap_err();
        assert_eq!(refusal, "4 ranks cannot form groups of 3; give one of 1, 2, 4");
    }

    proptest! {
        #[test]
        fn every_rank_has_one_place_and_every_place_as_many_ranks_as_groups(
            (size, hosts) in (1u32..6, 1usize..5).prop_flat_map(|(size, count)| {
                (Just(size), prop::collection::vec(0u32..4, count * size as usize))
            })
        ) {
            let mut seen = std::collections::BTreeSet::new();
            for rank in 0..hosts.len() as u32 {
                let mesh = mesh(&hosts, size, rank);
                prop_assert_eq!(mesh.group()[mesh.place() as usize], rank);
                prop_assert_eq!(mesh.replicas().len() as u32, mesh.count());
                prop_assert!(mesh.replicas().contains(&rank));
                let (group, place) = mesh.of(rank);
                prop_assert_eq!(mesh.replicas()[group as usize], rank);
                prop_assert!(seen.insert((group, place)) && place == mesh.place());
            }
        }
    }
}
