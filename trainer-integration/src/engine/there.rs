//! A step whose gradients stay on the device, where they are added up, and where weights and moments are, if all of the update can be done
//! there: the host reads how large the gradients are, and decides.

use std::ops::Range;

use burn::tensor::{Device, Tensor};

use super::block::BlockState;
use super::passes::digest;
use super::scatter::Scatter;
use super::walk::Gradient;
use super::{BucketSum, Engine, GradientSums, Reducer, Reducing, StepInProgress, Summed};
use crate::collective::nccl::{DeviceSums, Staged};
use crate::collective::{Collective, CollectiveError};
use crate::compress::Compression;
use crate::dtype::ReduceDtype;
use crate::flat_block::{from_numbers, to_numbers};
use crate::ledger::{Kind, Ledger, Numbers};
use crate::optim::{Norm, Optimizer};
use crate::reduce::fixed::{self, FixedSum};
use crate::reduce::rounded::{rounded, widen};
use crate::reduce::{Partials, Pending, Reduction, VirtualRanks};
use crate::resident::{Findings, Found, Resident, WholeSum, WholeTable};
use crate::trace::Lane;
use crate::zero::Zero;

/// The gradients of a step.
#[derive(Debug)]
pub(super) struct There {
    /// By virtual rank of this rank, then by bucket: the sum over the micro-batches so far. Added up in any order, they are in `sums`.
    carried: Vec<Vec<Option<Tensor<1>>>>,
    /// By bucket: the numbers of one virtual rank, or of several added up in any order.
    sums: Vec<Option<Tensor<1>>>,
    /// By bucket: those of several, in whole numbers.
    whole: Vec<Option<WholeSum>>,
    /// By bucket, in their order.
    reductions: Vec<Reduced>,
    findings: Findings,
}

/// The sum of a bucket over the virtual ranks of a rank; nothing of those without samples.
#[derive(Debug, Default)]
pub(super) struct SumThere {
    /// Of one virtual rank, or of several in any order.
    numbers: Option<Tensor<1>>,
    /// Of several.
    whole: Option<WholeSum>,
}

impl SumThere {
    /// Rounded.
    fn into_numbers(self, length: usize, device: &Device) -> Tensor<1> {
        let sum = self.whole.map(|whole| whole.round()).or(self.numbers);
        sum.unwrap_or_else(|| Tensor::zeros([length], device))
    }

    /// Waits for the device.
    fn into_fixed(self, mut none: FixedSum, length: usize, ledger: &Ledger) -> FixedSum {
        if none.is_of_one() {
            let numbers = self.numbers.map_or_else(|| vec![0.0; length], to_numbers);
            none.push(Numbers::of(ledger, Kind::Gradients, numbers));
        } else {
            none.begin_with(self.whole.map_or_else(|| vec![0; length], |whole| whole.to_sums()));
        }
        none
    }
}

/// The sums of a bucket over all ranks; none of a bucket without numbers.
#[derive(Debug)]
enum Reduced {
    UnderWay(Pending<Tensor<1>>),
    Done(Option<Box<Tensor<1>>>),
}

/// By bucket, the places of sums in whole numbers that the device has: they change rarely.
#[derive(Debug, Default)]
pub(super) struct Tables(Vec<Option<Table>>);

#[derive(Debug)]
struct Table {
    /// Of each parameter the end and the places.
    parameters: Vec<(usize, i32)>,
    there: WholeTable,
}

impl Tables {
    fn of(&mut self, bucket: usize, parameters: Vec<(usize, i32)>, device: &Device) -> WholeTable {
        if self.0.len() <= bucket {
            self.0.resize_with(bucket + 1, || None);
        }
        match &self.0[bucket] {
            Some(table) if table.parameters == parameters => table.there.clone(),
            _ => {
                let there = WholeTable::new(&parameters, device);
                self.0[bucket] = Some(Table { parameters, there: there.clone() });
                there
            }
        }
    }
}

impl Reducer {
    /// Whether devices add up as it says: gradients that are not compressed, and exact ones in 32 bits.
    pub(super) fn is_for_devices(&self) -> bool {
        match self.reduction {
            Reduction::Exact => self.reduce_dtype == ReduceDtype::F32,
            Reduction::Fast(compression) => compression == Compression::None,
        }
    }
}

impl There {
    pub(super) fn findings(&self) -> &Findings {
        &self.findings
    }
}

impl Engine {
    /// Whether weights and moments are on the device, and the whole step with them.
    pub(super) fn is_resident(&self) -> bool {
        self.slices.zero == Zero::Nothing && self.sums_there() && Resident::supports(self.rule.optimizer)
    }

    /// Whether gradients stay on the device until they are added up.
    pub(super) fn keeps_gradients_there(&self) -> bool {
        self.reducer.device_sums.is_some() || self.sums_there()
    }

    /// Whether there is a device that adds up gradients as they are to be.
    fn sums_there(&self) -> bool {
        self.compute.device != Device::flex() && self.reducer.is_for_devices()
    }

    /// Nothing yet.
    pub(super) fn begin_there(&self) -> Option<There> {
        let (hosted, buckets) = (self.virtual_ranks().len(), self.reducer.buckets.count());
        let exponents = if self.sums_whole() { self.reducer.ranges.len() } else { 0 };
        // Sums that go to the host have their squares found there.
        let blocks = if self.is_resident() { &self.blocks[..] } else { &[] };
        let squared = blocks.iter().map(BlockState::trained_len);
        self.keeps_gradients_there().then(|| There {
            carried: vec![vec![None; buckets]; hosted],
            sums: vec![None; buckets],
            whole: (0..buckets).map(|_| None).collect(),
            reductions: Vec::with_capacity(buckets),
            findings: Findings::new(exponents, squared, &self.compute.device),
        })
    }

    /// Takes a micro-batch's gradient of a bucket that stays on the device, as [`Engine::deliver`] does.
    pub(super) fn deliver_there(
        &mut self,
        begun: &mut StepInProgress,
        index: usize,
        bucket: usize,
        gradient: Option<Gradient>,
        is_last: bool,
    ) -> Result<(), CollectiveError> {
        let there = begun.there.as_mut().expect("gradients stay on the device");
        let length = self.reducer.buckets.len(bucket);
        let is_last_rank = index + 1 == self.virtual_ranks().len();
        if length == 0 {
            if is_last && is_last_rank {
                self.push_there(begun, bucket, SumThere::default())?;
            }
            return Ok(());
        }
        let is_exact = self.reducer.reduction == Reduction::Exact;
        let place = if is_exact { &mut there.carried[index][bucket] } else { &mut there.sums[bucket] };
        if let Some(Gradient::Device(tensors)) = gradient {
            let more = Tensor::cat(tensors, 0);
            // The device may have no memory for the sum: then it is as it was, and the gradient comes again.
            *place = Some(match &*place {
                Some(sum) => sum.clone() + more,
                None => more,
            });
        }
        if !is_last {
            return Ok(());
        }
        if is_exact {
            let numbers = place.take();
            if let Some(hasher) = begun.hashers.get_mut(index) {
                let numbers = numbers.clone().map_or_else(|| vec![0.0; length], to_numbers);
                digest(hasher, bytemuck::cast_slice(&numbers));
            }
            self.add_there(there, bucket, numbers);
        }
        if !is_last_rank {
            return Ok(());
        }
        let whole = there.whole[bucket].take().map(WholeSum::finished);
        let sum = SumThere { numbers: there.sums[bucket].take(), whole };
        self.push_there(begun, bucket, sum)
    }

    /// Sends a bucket on its way, behind those before it.
    fn push_there(
        &mut self,
        begun: &mut StepInProgress,
        bucket: usize,
        sum: SumThere,
    ) -> Result<(), CollectiveError> {
        if self.slices.zero != Zero::Nothing {
            return self.send(begun, bucket, BucketSum::There(Box::new(sum)));
        }
        drop(self.times.tracer.span(Lane::Compute, || format!("send bucket {bucket}")));
        let reduction = self.reduce_there(bucket, sum);
        begun.there.as_mut().expect("gradients stay on the device").reductions.push(reduction);
        Ok(())
    }

    /// Adds the numbers of a virtual rank exactly; of one without samples there are none.
    fn add_there(&mut self, there: &mut There, bucket: usize, numbers: Option<Tensor<1>>) {
        let Some(numbers) = numbers else { return };
        if !self.sums_whole() {
            there.sums[bucket] = Some(numbers);
            return;
        }
        let table = self.table(bucket);
        let into = self.order_of_parameters(0..bucket).count();
        if self.virtual_ranks().len() == 1 && self.reducer.device_sums.is_none() {
            there.findings.note(&numbers, &table, into);
            there.sums[bucket] = Some(numbers);
            return;
        }
        let sum = there.whole[bucket].get_or_insert_with(|| WholeSum::new(table));
        sum.add(&numbers, &there.findings, into);
    }

    fn table(&mut self, bucket: usize) -> WholeTable {
        let mut end = 0;
        let places = self.trained_of(bucket).map(|(parameter, length)| {
            end += length;
            (end, self.reducer.ranges.places(parameter, self.ranks.count))
        });
        let places = places.collect();
        self.reducer.tables.of(bucket, places, &self.compute.device)
    }

    /// The trained parameters of buckets in the order of these.
    fn order_of_parameters(&self, buckets: Range<usize>) -> impl Iterator<Item = usize> {
        buckets.flat_map(|bucket| self.trained_of(bucket)).map(|(parameter, _)| parameter)
    }

    /// Sends a bucket on its way, if there are other ranks.
    fn reduce_there(&mut self, bucket: usize, sum: SumThere) -> Reduced {
        let (device, length) = (self.compute.device.clone(), self.reducer.buckets.len(bucket));
        if length == 0 {
            return Reduced::Done(None);
        }
        // A world of one has its sums added up if the device is to do so, too: then one GPU is enough to see that it can.
        if self.comm.world() == 1 && self.reducer.device_sums.is_none() {
            return Reduced::Done(Some(Box::new(sum.into_numbers(length, &device))));
        }
        let all_reduce = self.all_reduce_there(bucket, sum);
        let tracer = self.times.tracer.clone();
        Reduced::UnderWay(self.comm.submit(move |collective| {
            let _span = tracer.span(Lane::Communication, || format!("reduce bucket {bucket}"));
            all_reduce(collective)
        }))
    }

    /// The sums of all ranks, on the device.
    fn all_reduce_there(
        &mut self,
        bucket: usize,
        sum: SumThere,
    ) -> impl FnOnce(&mut dyn Collective) -> Result<Tensor<1>, CollectiveError> + Send + use<> {
        let (device, length) = (self.compute.device.clone(), self.reducer.buckets.len(bucket));
        let (ranks, ledger, sums) = (self.ranks, self.ledger.clone(), self.reducer.device_sums.clone());
        let exact = self.sums_whole().then(|| {
            (FixedSum::new(self.scales(bucket), self.virtual_ranks().len(), &ledger), self.table(bucket))
        });
        let mut staged =
            Staged { dtype: self.reducer.reduce_dtype, table: self.reducer.table.as_deref().cloned() };
        move |collective| {
            let mut sums =
                sums.as_ref().map(|sums| sums.lock().expect("no panic while gradients are added up"));
            match (exact, &mut sums) {
                (Some((_, table)), Some(sums)) => {
                    let mut whole = sum.whole.unwrap_or_else(|| WholeSum::new(table));
                    whole.all_reduce(&mut ***sums, collective)?;
                    Ok(whole.round())
                }
                (Some((mine, _)), None) => {
                    let mine = sum.into_fixed(mine, length, &ledger);
                    Ok(from_numbers(fixed::all_reduce(collective, ranks, mine)?.into_values(), &device))
                }
                (None, Some(sums)) => sums.all_reduce(sum.into_numbers(length, &device), collective),
                (None, None) => staged.all_reduce(sum.into_numbers(length, &device), collective),
            }
        }
    }

    /// The sums of the slices that this rank keeps, on the host, as [`Engine::reduce_slices`] has them.
    pub(super) fn reduce_slices_there(&mut self, bucket: usize, scatter: Scatter, sum: SumThere) -> Reducing {
        let (tracer, name) = (self.times.tracer.clone(), move || format!("reduce bucket {bucket}"));
        if self.reducer.device_sums.is_some() {
            let all_reduce = self.all_reduce_there(bucket, sum);
            let ledger = self.ledger.clone();
            return Reducing::UnderWay(self.comm.submit(move |collective| {
                let _span = tracer.span(Lane::Communication, name);
                let sum = all_reduce(collective)?;
                let fetch = |range: Range<usize>| to_numbers(sum.clone().slice(range));
                Ok(super::Reduced { sum: scatter.kept_there(sum.dims()[0], &ledger, fetch), spare: None })
            }));
        }
        let (device, length) = (self.compute.device.clone(), self.reducer.buckets.len(bucket));
        let (rank, world, ranks, ledger) =
            (self.comm.rank(), self.comm.world(), self.ranks, self.ledger.clone());
        let (is_exact, dtype) = (self.reducer.reduction == Reduction::Exact, self.reducer.reduce_dtype);
        let exact = FixedSum::new(self.scales(bucket), self.virtual_ranks().len(), &ledger);
        // Sums made in any order are added up once more in that of the ranks.
        let by_rank = VirtualRanks { count: world, world };
        Reducing::UnderWay(self.comm.submit(move |collective| {
            let _span = tracer.span(Lane::Communication, name);
            if is_exact {
                let (sum, spare) =
                    scatter.fixed_sums(collective, ranks, sum.into_fixed(exact, length, &ledger))?;
                return Ok(super::Reduced { sum, spare });
            }
            let numbers = to_numbers(sum.into_numbers(length, &device));
            let numbers = Numbers::of(&ledger, Kind::Gradients, numbers);
            if dtype == ReduceDtype::F32 {
                let partials = Partials::of(world, rank, numbers);
                let (sum, spare) = scatter.sums(collective, by_rank, partials)?;
                return Ok(super::Reduced { sum, spare });
            }
            let halves = rounded(&numbers, &ledger);
            drop(numbers);
            let partials = Partials::of(world, rank, halves);
            let sums = scatter.sums(collective, by_rank, partials)?.0;
            let mut sum = Numbers::with_capacity(&ledger, Kind::Gradients, sums.len());
            widen(&sums, &mut sum.growing());
            Ok(super::Reduced { sum, spare: None })
        }))
    }

    /// Has the squares of the sums found, if they are there already.
    pub(super) fn square_there(&self, begun: &StepInProgress) {
        let Some(there) = begun.there.as_ref().filter(|_| self.is_resident()) else { return };
        for (bucket, reduction) in there.reductions.iter().enumerate() {
            if let Reduced::Done(Some(sum)) = reduction {
                self.square(bucket, sum, &there.findings);
            }
        }
    }

    fn square(&self, bucket: usize, sum: &Tensor<1>, findings: &Findings) {
        for (block, range) in self.reducer.buckets.places(bucket) {
            findings.square(block, sum, range);
        }
    }

    /// As [`Engine::sum_up`], with what has been found of this rank's gradients.
    pub(super) fn sum_up_there(
        &mut self,
        there: There,
        mut found: Found,
        totals: Pending<Numbers<f64>>,
    ) -> Result<Summed, CollectiveError> {
        let There { reductions, findings, .. } = there;
        let largest = self.largest_of_all(self.by_parameter(&found.largest));
        let are_squared = reductions.iter().all(|reduced| matches!(reduced, Reduced::Done(_)));
        let mut sums = Vec::with_capacity(reductions.len());
        for reduction in reductions {
            sums.push(match reduction {
                Reduced::UnderWay(pending) => Some(pending.wait()?),
                Reduced::Done(sum) => sum.map(|sum| *sum),
            });
        }
        if !self.is_resident() {
            let sums =
                sums.into_iter().map(|sum| sum.map_or_else(Numbers::default, |sum| to_numbers(sum).into()));
            return self.conclude(sums.collect(), totals, largest);
        }
        if !are_squared {
            let sums = sums.iter().enumerate();
            sums.filter_map(|(bucket, sum)| Some((bucket, sum.as_ref()?)))
                .for_each(|(bucket, sum)| self.square(bucket, sum, &findings));
            found = findings.read();
        }
        let mut norm = Norm::default();
        // From the last to the first, as they lie in buckets of any size.
        found.squares.iter().rev().for_each(|squares| norm.add_squares(&[*squares]));
        let totals = totals.wait()?;
        let (norm, factor) = self.of_mean(norm, &totals);
        let (gradient, largest) = (GradientSums::There(sums), largest.wait()?);
        Ok(Summed { gradient, totals, norm, factor, trust: Vec::new(), largest })
    }

    /// Facts of all trained parameters in their order, from those in the order of buckets.
    pub(super) fn by_parameter(&self, facts: &[u8]) -> Vec<u8> {
        let mut by_parameter = vec![0; facts.len()];
        if !facts.is_empty() {
            let order = self.order_of_parameters(0..self.reducer.buckets.count());
            order.zip(facts).for_each(|(parameter, fact)| by_parameter[parameter] = *fact);
        }
        by_parameter
    }

    /// Moves the weights where they are.
    pub(super) fn update_there(
        &mut self,
        optimizer: Optimizer,
        sums: &[Option<Tensor<1>>],
        factor: f32,
        rate: f32,
    ) {
        for (bucket, sum) in sums.iter().enumerate().rev() {
            for (block, range) in self.reducer.buckets.places(bucket) {
                if let Some(sum) = sum.as_ref().filter(|_| !range.is_empty()) {
                    let block = &mut self.blocks[block];
                    block.update_there(&self.compute.device, optimizer, rate, (sum, range.start), factor);
                }
            }
        }
    }

    /// Has the host's numbers be those of the device.
    pub(super) fn fetch(&mut self) {
        self.blocks.iter_mut().for_each(BlockState::fetch);
    }
}
