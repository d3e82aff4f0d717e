//! All-reduce of compressed gradients. Dense formats go to the owner of each slice, who adds them up and sends the sum back in the same format; sparse ones go from
//! everyone to everyone. Sums are taken in the order of ranks: all ranks have the same bits.

use std::time::Instant;

use super::codec::Codec;
use super::dgc::{accumulate, clip_locally, forget_sent};
use super::residual::Residual;
use super::sparse::{Entry, add, count_of, largest};
use super::{Compression, CompressionReport, Sparsity};
use crate::collective::{Collective, CollectiveError, Message, slice_of};

/// Compresses the gradients of one bucket, step by step.
#[derive(Debug)]
pub(crate) struct Compressor {
    compression: Compression,
    residual: Residual,
    /// The same after the step that is under way, until it is taken.
    next: Option<Residual>,
    report: CompressionReport,
}

/// The settings that differ from step to step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Circumstances {
    /// From 0.
    pub(crate) epoch: u32,
    /// Of the optimizer, which leaves it to deep gradient compression.
    pub(crate) momentum: f32,
    /// The length that the mean gradient of all ranks may have in this bucket.
    pub(crate) clip: Option<f32>,
}

impl Compressor {
    pub(crate) fn new(compression: Compression) -> Compressor {
        let (residual, report) = (Residual::default(), CompressionReport::default());
        Compressor { compression, residual, next: None, report }
    }

    /// The numbers not sent in the steps that were taken.
    pub(crate) fn residual(&self) -> &Residual {
        &self.residual
    }

    /// Continues with other unsent numbers, as if no step was under way.
    pub(crate) fn restore(&mut self, residual: Residual) {
        self.residual = residual;
        self.next = None;
    }

    /// Its cost and saving up to now.
    pub(crate) fn report(&self) -> CompressionReport {
        self.report
    }

    /// The step that was under way is taken, or was never made.
    pub(crate) fn conclude(&mut self, is_taken: bool) {
        if let Some(residual) = self.next.take()
            && is_taken
        {
            self.residual = residual;
        }
    }

    /// The sum over all ranks of their sent numbers. The rest is added to the next gradient, so all gradients
    /// are to the same scale: parts of means.
    pub(crate) fn all_reduce(
        &mut self,
        collective: &mut dyn Collective,
        mut gradient: Vec<f32>,
        circumstances: Circumstances,
    ) -> Result<Vec<f32>, CollectiveError> {
        let world = u64::from(collective.world());
        let (before, began, codec_s) = (collective.bytes_sent(), Instant::now(), self.report.codec_s());
        let plain = size_of_val(&gradient[..]) as u64;
        self.report.plain_bytes += 2 * (world - 1) * plain / world;
        if let (Compression::Dgc(_), Some(limit)) = (self.compression, circumstances.clip) {
            clip_locally(&mut gradient, limit, collective.world());
        }
        let sum = match self.compression {
            Compression::None => unreachable!("nothing to compress"),
            Compression::Bf16 => self.dense(collective, Codec::Bf16, gradient)?,
            Compression::Fp16 => self.dense(collective, Codec::Fp16, gradient)?,
            Compression::Int8 => self.dense(collective, Codec::Int8, gradient)?,
            Compression::OneBit => self.dense(collective, Codec::OneBit, gradient)?,
            Compression::TopK(share) => {
                let began = Instant::now();
                add_to(&mut gradient, &self.residual.gradients);
                let entries = largest(&gradient, count_of(share, gradient.len()));
                entries.iter().for_each(|entry| gradient[entry.place as usize] = 0.0);
                let count = gradient.len();
                self.next = Some(Residual { gradients: gradient, ..Residual::default() });
                self.report.encoded(began.elapsed());
                self.sparse(collective, &entries, count)?
            }
            Compression::Dgc(share) => {
                let began = Instant::now();
                let mut residual = self.residual.clone();
                accumulate(&mut residual, &gradient, circumstances.momentum);
                let share = Sparsity { share }.of_epoch(circumstances.epoch);
                let entries = largest(&residual.gradients, count_of(share, gradient.len()));
                entries.iter().for_each(|entry| forget_sent(&mut residual, entry.place as usize));
                self.next = Some(residual);
                self.report.encoded(began.elapsed());
                self.sparse(collective, &entries, gradient.len())?
            }
        };
        let sent = collective.bytes_sent() - before;
        let transfer_s = began.elapsed().as_secs_f64() - (self.report.codec_s() - codec_s);
        self.report.sent_bytes += sent;
        self.report.link_rate = self.report.link_rate.max(sent as f64 / transfer_s.max(f64::MIN_POSITIVE));
        Ok(sum)
    }

    fn dense(
        &mut self,
        collective: &mut dyn Collective,
        codec: Codec,
        mut gradient: Vec<f32>,
    ) -> Result<Vec<f32>, CollectiveError> {
        let (rank, world, count) = (collective.rank(), collective.world(), gradient.len());
        let began = Instant::now();
        add_to(&mut gradient, &self.residual.gradients);
        let mut outgoing = Vec::with_capacity(world as usize);
        for to in 0..world {
            let slice = &mut gradient[slice_of(count, to, world)];
            let bytes = codec.encode(slice);
            subtract(slice, &codec.decode(&bytes, slice.len()).expect("just encoded"));
            outgoing.push(bytes);
        }
        self.report.encoded(began.elapsed());
        let slices: Vec<&[u8]> = outgoing.iter().map(Vec::as_slice).collect();
        let received = collective.exchange(&slices)?;

        let began = Instant::now();
        let own = slice_of(count, rank, world).len();
        let mut sum = vec![0.0; own];
        for (from, message) in received.iter().enumerate() {
            add_to(&mut sum, &decoded(codec, message, from, own)?);
        }
        self.report.decoded(began.elapsed());

        let began = Instant::now();
        add_to(&mut sum, &self.residual.sums);
        let bytes = codec.encode(&sum);
        subtract(&mut sum, &codec.decode(&bytes, own).expect("just encoded"));
        self.next = Some(Residual { gradients: gradient, velocity: Vec::new(), sums: sum });
        self.report.encoded(began.elapsed());
        let all = collective.all_gather(&bytes)?;

        let began = Instant::now();
        let mut total = Vec::with_capacity(count);
        for (from, message) in all.iter().enumerate() {
            total.extend(decoded(codec, message, from, slice_of(count, from as u32, world).len())?);
        }
        self.report.decoded(began.elapsed());
        Ok(total)
    }

    fn sparse(
        &mut self,
        collective: &mut dyn Collective,
        entries: &[Entry],
        count: usize,
    ) -> Result<Vec<f32>, CollectiveError> {
        let all = collective.all_gather(bytemuck::cast_slice(entries))?;
        let began = Instant::now();
        let mut total = vec![0.0; count];
        for (from, message) in all.iter().enumerate() {
            add(message.bytes(), &mut total).ok_or_else(|| malformed(message, from))?;
        }
        self.report.decoded(began.elapsed());
        Ok(total)
    }
}

fn decoded(codec: Codec, message: &Message, from: usize, count: usize) -> Result<Vec<f32>, CollectiveError> {
    codec.decode(message.bytes(), count).ok_or_else(|| malformed(message, from))
}

fn malformed(message: &Message, from: usize) -> CollectiveError {
    let what = format!("{} bytes that are no compressed gradient of this model", message.bytes().len());
    CollectiveError::Malformed { rank: from as u32, what }
}

/// Adds numbers, of which there may be none yet.
fn add_to(to: &mut [f32], numbers: &[f32]) {
    to.iter_mut().zip(numbers).for_each(|(to, number)| *to += number);
}

fn subtract(from: &mut [f32], numbers: &[f32]) {
    from.iter_mut().zip(numbers).for_each(|(from, number)| *from -= number);
}
