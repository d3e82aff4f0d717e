//! Where decoders put samples: keeps the asked part, within the limit.

use std::ops::Range;

use super::{DecodeError, DecodeOptions, Format, Truncated};
use crate::waveform::{Waveform, extend_by_mean};

/// Whether a decoder has more to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    More,
    Done,
}

/// Takes the samples of a file in their order.
#[derive(Debug)]
pub(super) struct Sink<'a> {
    format: Format,
    options: &'a DecodeOptions,
    channels: usize,
    rate: u32,
    /// The part of the file that is kept.
    kept: Range<u64>,
    /// Where the asked part ends, whether or not the file has it.
    asked_end: u64,
    /// Where the sound ends, if that is known.
    end: u64,
    /// The next sample's place in the file.
    position: u64,
    planes: Vec<Vec<f32>>,
}

impl<'a> Sink<'a> {
    pub(super) fn new(format: Format, options: &'a DecodeOptions) -> Self {
        Self {
            format,
            options,
            channels: 0,
            rate: 0,
            kept: 0..0,
            asked_end: u64::MAX,
            end: u64::MAX,
            position: 0,
            planes: Vec::new(),
        }
    }

    /// Channels and rate, before the first sample, and the length if it is known.
    pub(super) fn open(
        &mut self,
        channels: usize,
        rate: u32,
        samples: Option<u64>,
    ) -> Result<(), DecodeError> {
        if channels == 0 || rate == 0 {
            let detail = format!("it has {channels} channels of {rate} samples per second");
            return Err(DecodeError::broken(self.format, detail));
        }
        let start = self.options.start.samples(rate);
        let end = self.options.length.map_or(u64::MAX, |length| start.saturating_add(length.samples(rate)));
        self.channels = channels;
        self.rate = rate;
        self.kept = start..end;
        self.asked_end = end;
        self.planes = vec![Vec::new(); if self.options.mono { 1 } else { channels }];
        self.end_at(samples.unwrap_or(u64::MAX));
        match samples {
            Some(_) => self.fits(self.kept.end.saturating_sub(start)),
            None => Ok(()),
        }
    }

    /// Makes room for all that is kept. Only for samples whose bytes are there: headers may promise any number.
    pub(super) fn reserve(&mut self) {
        let samples = usize::try_from(self.kept.end.saturating_sub(self.kept.start)).unwrap_or(0);
        self.planes.iter_mut().for_each(|plane| plane.reserve_exact(samples));
    }

    /// Samples from here on do not belong to the sound.
    pub(super) fn end_at(&mut self, end: u64) {
        self.end = self.end.min(end);
        self.kept.end = self.kept.end.min(end);
    }

    /// Whether more is asked for than the samples before this.
    pub(super) fn asks_beyond(&self, end: u64) -> bool {
        self.asked_end > end
    }

    /// The first sample that is kept.
    pub(super) fn start(&self) -> u64 {
        self.kept.start
    }

    /// The next sample's place in the file.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Whether all that is asked for is there.
    pub(super) fn flow(&self) -> Flow {
        if self.position >= self.kept.end { Flow::Done } else { Flow::More }
    }

    /// Goes to a place without samples of the way there.
    pub(super) fn skip_to(&mut self, position: u64) {
        self.position = position;
    }

    /// Takes the next samples: the first `count` of each channel.
    pub(super) fn push(&mut self, planes: &[Vec<f32>], count: usize) -> Result<Flow, DecodeError> {
        if planes.len() != self.channels {
            let detail = format!("it changes from {} to {} channels", self.channels, planes.len());
            return Err(DecodeError::broken(self.format, detail));
        }
        let after = self.position + count as u64;
        let part = self.kept.start.clamp(self.position, after)..self.kept.end.clamp(self.position, after);
        if part.start < part.end {
            let [from, to] = [part.start, part.end].map(|at| (at - self.position) as usize);
            self.fits(self.planes[0].len() as u64 + (part.end - part.start))?;
            self.keep(planes, from..to);
        }
        self.position = after.min(self.end);
        Ok(self.flow())
    }

    fn keep(&mut self, planes: &[Vec<f32>], part: Range<usize>) {
        if !self.options.mono {
            for (kept, plane) in self.planes.iter_mut().zip(planes) {
                kept.extend_from_slice(&plane[part.clone()]);
            }
            return;
        }
        extend_by_mean(&mut self.planes[0], planes.iter().map(|plane| &plane[part.clone()]));
    }

    fn fits(&self, samples: u64) -> Result<(), DecodeError> {
        let max_samples = self.options.max_samples;
        if samples.saturating_mul(self.planes.len() as u64) > max_samples {
            return Err(DecodeError::TooLong { format: self.format, max_samples });
        }
        Ok(())
    }

    /// The waveform, after a decoder ended in this way.
    pub(super) fn finish(self, read: Result<(), DecodeError>) -> Result<Waveform, DecodeError> {
        let keep = self.options.truncated == Truncated::Keep && !self.planes.is_empty();
        match read {
            Err(DecodeError::Truncated { .. } | DecodeError::Broken { .. }) if keep => {}
            read => read?,
        }
        let Self { format, position, kept: Range { start, .. }, rate, .. } = self;
        if start > position {
            return Err(DecodeError::OutsideStart { format, start, samples: position });
        }
        let shrunk = |mut plane: Vec<f32>| {
            plane.shrink_to_fit();
            plane
        };
        Ok(Waveform::with(self.planes.into_iter().map(shrunk).collect(), rate))
    }
}
