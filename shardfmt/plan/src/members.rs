//! Which full grains are in which stratum. Knows nothing of partitions.

use std::sync::Arc;

use super::{PlanDocument, SampleNo, Strata};

/// The full grains, stratum by stratum, each in manifest order.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    /// How many are in the strata before each; at the end, in all.
    starts: Vec<u64>,
    /// None if all are in one stratum.
    listed: Option<Listed>,
}

#[derive(Clone, Debug)]
struct Listed {
    strata: Arc<Strata>,
    fulls: Vec<u32>,
}

impl Members {
    /// Of a document whose strata, if it has any, are those of as many grains of one sample each.
    pub(crate) fn new(document: &PlanDocument, grains: u64) -> Self {
        let Some(strata) = document.strata.as_ref().and_then(|strata| strata.get()) else {
            return Members { starts: vec![0, grains], listed: None };
        };
        let mut starts = vec![0];
        strata.sizes().iter().for_each(|size| starts.push(starts[starts.len() - 1] + size));
        let (mut next, mut fulls) = (starts.clone(), vec![0; grains as usize]);
        for full in 0..grains {
            let next = &mut next[usize::from(strata.of(SampleNo(full)))];
            fulls[*next as usize] = full as u32; // a version with strata has at most 2^32 samples
            *next += 1;
        }
        Members { starts, listed: Some(Listed { strata: Arc::clone(strata), fulls }) }
    }

    pub(crate) fn strata(&self) -> usize {
        self.starts.len() - 1
    }

    /// How many grains are in the strata before.
    pub(crate) fn start(&self, stratum: usize) -> u64 {
        self.starts[stratum]
    }

    pub(crate) fn len(&self, stratum: usize) -> u64 {
        self.starts[stratum + 1] - self.starts[stratum]
    }

    /// The stratum of number `at` when the slots of all are dealt.
    #[inline]
    pub(crate) fn stratum_dealt(&self, at: u64) -> usize {
        match self.listed {
            Some(_) => self.starts.partition_point(|start| *start <= at) - 1,
            None => 0,
        }
    }

    /// The full grain that is the `member`-th of a stratum.
    pub(crate) fn full(&self, stratum: usize, member: u64) -> u64 {
        match &self.listed {
            Some(listed) => listed.fulls[(self.starts[stratum] + member) as usize].into(),
            None => member,
        }
    }

    /// The stratum of a full grain, and which of it.
    pub(crate) fn find(&self, full: u64) -> (usize, u64) {
        let Some(Listed { strata, fulls }) = &self.listed else { return (0, full) };
        let stratum = usize::from(strata.of(SampleNo(full)));
        let own = &fulls[self.starts[stratum] as usize..self.starts[stratum + 1] as usize];
        (stratum, own.partition_point(|other| u64::from(*other) < full) as u64)
    }
}
