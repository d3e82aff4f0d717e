//! Why an operation made nothing.

/// Why an operation could not be applied.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each message names its fields")]
pub enum OpError {
    /// An argument is outside its range.
    #[error("{op}: {detail}")]
    Argument { op: &'static str, detail: String },
    /// The waveform has another sample rate than the operation's arguments.
    #[error(
        "{op} is set to {expected} Hz and gets a waveform of {found} Hz: put a Resample before it, or set `{argument}` \
         to {found}"
    )]
    Rate { op: &'static str, argument: &'static str, expected: u32, found: u32 },
    /// The waveform has too few samples.
    #[error("{op} gets {found} samples and needs at least {needed}: {way_out}")]
    TooShort { op: &'static str, found: usize, needed: usize, way_out: &'static str },
    /// A count does not match the arguments.
    #[error("{op} gets {found} {unit} and expects {expected}: {way_out}")]
    Shape { op: &'static str, unit: &'static str, found: usize, expected: usize, way_out: &'static str },
    /// The result would not fit into memory that one sample may take.
    #[error(
        "{op} would make {numbers} numbers of one sample, over the limit of {limit}: cut the waveform before it"
    )]
    TooLarge { op: &'static str, numbers: u128, limit: usize },
}

impl OpError {
    /// The end of the sentence that begins with the operation's name.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Argument { detail, .. } => arguments(detail),
            Self::Rate { op, .. }
            | Self::TooShort { op, .. }
            | Self::Shape { op, .. }
            | Self::TooLarge { op, .. } => {
                let text = self.to_string();
                text.strip_prefix(op).unwrap_or(&text).trim_start().to_owned()
            }
        }
    }

    /// Makes an error of the text of a failed check.
    pub(crate) fn argument(op: &'static str) -> impl FnOnce(String) -> Self {
        move |detail| Self::Argument { op, detail }
    }
}

/// The text of a failed check as the end of the sentence that begins with the operation's name.
pub(crate) fn arguments(detail: &str) -> String {
    format!("has an argument out of range: {detail}")
}

/// The most numbers that one operation makes of one sample: 4 GiB.
pub(crate) const MOST_NUMBERS: usize = 1 << 30;

/// Refuses a result over the limit before it takes memory.
pub(crate) fn fits(op: &'static str, sides: [usize; 3]) -> Result<(), OpError> {
    let numbers = sides.iter().fold(1u128, |product, &side| product.saturating_mul(side as u128));
    if numbers > MOST_NUMBERS as u128 {
        return Err(OpError::TooLarge { op, numbers, limit: MOST_NUMBERS });
    }
    Ok(())
}
