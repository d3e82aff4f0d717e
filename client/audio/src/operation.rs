//! The rules by which a chain is checked and applied.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use shardd_transforms::{Draws, Place};

use crate::error::OpError;
use crate::value::{Kind, Value};
use crate::waveform::{Specgram, Waveform};

/// An operation of a chain.
pub(crate) trait Operation {
    /// The kind of the sounds that it makes of sounds of this kind, and the step that does it, with its tables. The text of an
    /// error ends the sentence that begins with its name.
    fn plan(&self, input: Kind) -> Result<Planned, String>;

    /// The samples that are all it needs of a waveform, if it begins by cutting them out: then only these are decoded.
    /// Applied to them, it makes the same as of the whole. `samples` is none if the length of the whole is not known.
    fn part(&self, _samples: Option<u64>, _rate: u32, _at: At) -> Option<Range<u64>> {
        None
    }

    /// For how many operations it counts: itself, and those inside.
    fn count(&self) -> u64 {
        1
    }
}

/// Where an operation is applied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    pub(crate) place: Place,
    /// The operation's number.
    pub(crate) op: u64,
}

impl At {
    /// The random numbers of the operation.
    pub(crate) fn draws(self) -> Draws {
        Draws::new(self.place, self.op)
    }
}

/// An operation that fits its input.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    /// The kind of the sounds that it makes.
    pub(crate) kind: Kind,
    pub(crate) step: Step,
}

type Change = dyn Fn(Value, At) -> Result<Value, String> + Send + Sync;

/// An operation with its tables. The text of an error ends the sentence that begins with its name.
#[derive(Clone)]
pub(crate) struct Step(Arc<Change>);

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Step")
    }
}

impl Step {
    pub(crate) fn apply(&self, value: Value, at: At) -> Result<Value, String> {
        (self.0)(value, at)
    }
}

impl Planned {
    pub(crate) fn new(
        kind: Kind,
        change: impl Fn(Value, At) -> Result<Value, String> + Send + Sync + 'static,
    ) -> Self {
        Self { kind, step: Step(Arc::new(change)) }
    }

    /// From waveforms to waveforms.
    pub(crate) fn of_waveforms(
        kind: Kind,
        change: impl Fn(Waveform, At) -> Result<Waveform, OpError> + Send + Sync + 'static,
    ) -> Self {
        Self::new(kind, move |value, at| match value {
            Value::Waveform(waveform) => {
                change(waveform, at).map(Value::Waveform).map_err(|error| error.reason())
            }
            Value::Specgram(_) => unreachable!("a checked chain gives this operation waveforms"),
        })
    }

    /// From waveforms to spectrograms.
    pub(crate) fn to_specgrams(
        kind: Kind,
        change: impl Fn(&Waveform) -> Result<Specgram, OpError> + Send + Sync + 'static,
    ) -> Self {
        Self::new(kind, move |value, _| match value {
            Value::Waveform(waveform) => {
                change(&waveform).map(Value::Specgram).map_err(|error| error.reason())
            }
            Value::Specgram(_) => unreachable!("a checked chain gives this operation waveforms"),
        })
    }

    /// From spectrograms to spectrograms.
    pub(crate) fn of_specgrams(
        kind: Kind,
        change: impl Fn(Specgram, At) -> Result<Specgram, OpError> + Send + Sync + 'static,
    ) -> Self {
        Self::new(kind, move |value, at| match value {
            Value::Specgram(specgram) => {
                change(specgram, at).map(Value::Specgram).map_err(|error| error.reason())
            }
            Value::Waveform(_) => unreachable!("a checked chain gives this operation spectrograms"),
        })
    }
}
