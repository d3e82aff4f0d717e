//! Strata, as they are.

use shardd_plan::{SampleNo, Strata};

/// Bytes accepted as strata have one encoding, and put every sample into one of them.
pub(crate) fn strata(data: &[u8]) -> bool {
    let Ok(strata) = Strata::decode(data) else { return false };
    assert_eq!(strata.encode(), data);
    let samples = strata.sample_count();
    assert!((0..samples).all(|sample| usize::from(strata.of(SampleNo(sample))) < strata.names().len()));
    assert_eq!(strata.sizes().iter().sum::<u64>(), samples);
    true
}
