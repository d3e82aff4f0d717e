//! The algorithms that add up the gradients of a training: chosen before it begins, alike on all ranks.

use tracing::info;

use super::agree::ALL_REDUCE;
use super::persistence::Start;
use super::{TrainError, Training};
use crate::checkpoint::Settings;
use crate::collective::CollectiveError;
use crate::collective::nccl::{self, DeviceSums, NcclError, Transport};
use crate::collective::sums::{Tuned, TunedBy, tune};
use crate::compress::Compression;
use crate::dtype::ReduceDtype;
use crate::record::Purpose;
use crate::reduce::{AllReduce, Reduction};
use crate::zero::Zero;

impl Training<'_> {
    /// Whether [`TrainConfig::all_reduce`] decides how gradients are added up.
    pub(super) fn chooses_algorithm(&self) -> bool {
        let config = self.config;
        config.reduction == Reduction::Fast(Compression::None)
            && config.slicing.zero == Zero::Nothing
            && config.transport == Transport::Host
            && self.comm.world() > 1
    }

    /// The algorithms that add up gradients, the same on all ranks, which have agreed on the settings and on the start. A
    /// training that is compared with a record uses those of the record. One that resumes keeps those of its
    /// checkpoint, unless the user names one: new measurements could change the last bits of its weights.
    pub(super) fn tune(&self, start: &Start) -> Result<Option<Tuned>, CollectiveError> {
        if !self.chooses_algorithm() {
            return Ok(None);
        }
        let table_of = |settings: &Settings| serde_json::from_str(settings.get(ALL_REDUCE)?).ok();
        if let Some(Purpose::Compare(_, record)) = self.persistence.recording.as_ref().map(|it| &it.purpose) {
            // Earlier versions recorded no table, and used the built-in one.
            return Ok(table_of(&record.settings).map(|table| Tuned { table, by: TunedBy::Record }));
        }
        let before = match start {
            Start::Checkpoint(checkpoint) => table_of(&checkpoint.manifest.settings),
            Start::Seed | Start::Weights(_) | Start::Partly { .. } => None,
        };
        let tuned = match (&self.config.all_reduce, before) {
            (AllReduce::BuiltIn, _) => return Ok(None),
            (AllReduce::Only(algorithm), _) => Tuned { table: (*algorithm).into(), by: TunedBy::Choice },
            (AllReduce::Auto { .. }, Some(table)) => Tuned { table, by: TunedBy::Checkpoint },
            (AllReduce::Auto { cache }, None) => {
                let cache = cache.clone();
                self.comm.run(move |collective| tune(collective, cache.as_deref()))?
            }
        };
        if self.comm.rank() == 0 {
            info!(algorithms = %tuned, "all-reduce of gradients");
        }
        Ok(Some(tuned))
    }

    /// What adds up gradients from device to device, if they do not go through the host.
    pub(super) fn device_sums(
        &self,
        device: &burn::tensor::Device,
    ) -> Result<Option<Box<dyn DeviceSums>>, TrainError> {
        let Transport::Nccl { timeout } = self.config.transport else { return Ok(None) };
        let are_whole =
            matches!(self.config.reduction, Reduction::Exact | Reduction::Fast(Compression::None));
        if !are_whole || self.config.reduce_dtype != ReduceDtype::F32 {
            return Err(NcclError::Reduction.into());
        }
        let (name, device) = (self.config.device, device.clone());
        let joined = self.comm.run(move |collective| nccl::join(collective, name, &device, timeout))?;
        Ok(Some(joined?))
    }
}
