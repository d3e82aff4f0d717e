//! Whether the ranks' machines compute the same bits, before they train together.

use tracing::warn;

use crate::arithmetic::probe::{Complaint, Probe, complaint};
use crate::error::TrainError;
use crate::reduce::Comm;

/// Whether all ranks of a world that compute on the CPU compute the bits of the first of them. All ranks take part, so a rank on another device
/// sends none. `own_model`: it may use burn's own products, whose bits differ only where they
/// are long, so a difference is a warning.
///
/// # Errors
/// [`TrainError::Arithmetic`] when a rank does not, and bits are promised; [`TrainError::Collective`] when one is gone or late.
pub(crate) fn agree_on_bits(
    comm: &Comm,
    on_cpu: bool,
    is_exact: bool,
    own_model: bool,
) -> Result<(), TrainError> {
    if comm.world() == 1 {
        return Ok(());
    }
    agree_by(comm, on_cpu.then(Probe::of_this_machine), is_exact, own_model)
}

fn agree_by(comm: &Comm, mine: Option<&Probe>, is_exact: bool, own_model: bool) -> Result<(), TrainError> {
    let mine = serde_json::to_vec(&mine).expect("a probe serializes");
    let all = comm.run(move |collective| collective.all_gather(&mine))?;
    let probes: Vec<Option<Probe>> =
        all.iter().map(|theirs| serde_json::from_slice(theirs.bytes()).unwrap_or_default()).collect();
    match complaint(&probes, own_model) {
        Some(Complaint { rank, operations, theirs, ours, is_certain }) if is_exact && is_certain => {
            Err(TrainError::Arithmetic { rank, operations, theirs, ours })
        }
        Some(Complaint { rank, operations, theirs, ours, .. }) => {
            if comm.rank() == 0 {
                warn!(rank, operations, theirs, ours, "the machines of the ranks compute different bits");
            }
            Ok(())
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use shardfmt::Digest;

    use super::*;
    use crate::collective::{Collective, ThreadCollective, spawn};

    #[test]
    fn exact_sums_refuse_a_rank_that_computes_other_bits_and_fast_ones_do_not() {
        let ends = |is_exact: bool| {
            spawn(2, move |collective: ThreadCollective| {
                let rank = collective.rank();
                let mut probe = Probe::of_this_machine().clone();
                if rank == 1 {
                    probe.bits.insert("sums".to_owned(), Digest::of(b"other bits"));
                }
                let end = agree_by(&Comm::new(Box::new(collective)), Some(&probe), is_exact, false);
                end.err().map(|error| error.to_string())
            })
        };
        for refusal in ends(true) {
            let refusal = refusal.expect("every rank ends");
            assert!(refusal.starts_with("rank 1 computes other bits than rank 0 in sums"), "{refusal}");
        }
        assert_eq!(ends(false), [None, None]);
    }
}
