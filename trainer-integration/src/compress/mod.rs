//! Smaller gradients on the wire, with error feedback: the part that a rank does not send in one step is
//! added to the next one, so only time is lost (Seide et al., "1-bit stochastic gradient descent",
//! Interspeech 2014; Karimireddy et al., "Error feedback fixes SignSGD", ICML 2019).
//!
//! A hook between a bucket and the collective, for reductions that need not be exact.

mod codec;
mod dgc;
mod reduce;
mod residual;
mod sparse;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use dgc::Sparsity;
pub(crate) use reduce::{Circumstances, Compressor};
pub use residual::{RankResidual, Residual};
pub(crate) use residual::{heir, inherited, joined};

/// How gradients travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// As they are: 4 bytes a number.
    #[default]
    None,
    /// In 16 bits of which 8 are the exponent.
    Bf16,
    /// In 16 bits of which 5 are the exponent, multiplied by a power of two that makes the most of them.
    Fp16,
    /// In 8 bits, as multiples of the 127th part of the largest of 1,024 numbers.
    Int8,
    /// In one bit, the sign, with the means of the numbers from 0 on and of those below for each 2,048 numbers (Seide et al.,
    /// 2014, who have the two means of each column). Meant for sgd: error feedback does not reach the second moment of Adam
    /// (Tang et al., "1-bit Adam", ICML 2021).
    #[serde(rename = "1bit")]
    OneBit,
    /// Only the largest ones of each bucket: this share of them.
    TopK(f32),
    /// Deep gradient compression (Lin et al., ICLR 2018): only the largest ones of the accumulated numbers,
    /// with momentum added up before, and cleared where a number is sent; the gradient of each rank clipped.
    /// The share falls to this one over the first epochs.
    Dgc(f32),
}

impl FromStr for Compression {
    type Err = String;

    fn from_str(text: &str) -> Result<Compression, String> {
        let share = |digits: &str| {
            let share = digits.parse().ok().filter(|share| *share > 0.0 && *share <= 1.0);
            share.ok_or_else(|| format!("{digits:?} is not a share above 0 and at most 1, as in topk:0.01"))
        };
        match text.split_once(':') {
            None => match text {
                "none" => Ok(Compression::None),
                "bf16" => Ok(Compression::Bf16),
                "fp16" => Ok(Compression::Fp16),
                "int8" => Ok(Compression::Int8),
                "1bit" => Ok(Compression::OneBit),
                _ => Err(format!(
                    "no compression is called {text:?}; give none, bf16, fp16, int8, 1bit, topk:SHARE or dgc:SHARE"
                )),
            },
            Some(("topk", digits)) => share(digits).map(Compression::TopK),
            Some(("dgc", digits)) => share(digits).map(Compression::Dgc),
            Some((name, _)) => {
                Err(format!("no compression is called {name:?} with a share; give topk or dgc"))
            }
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compression::None => f.write_str("none"),
            Compression::Bf16 => f.write_str("bf16"),
            Compression::Fp16 => f.write_str("fp16"),
            Compression::Int8 => f.write_str("int8"),
            Compression::OneBit => f.write_str("1bit"),
            Compression::TopK(share) => write!(f, "topk:{share}"),
            Compression::Dgc(share) => write!(f, "dgc:{share}"),
        }
    }
}

/// The cost and saving of compression on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CompressionReport {
    /// The bytes that a ring would have sent of the same gradients.
    pub plain_bytes: u64,
    /// The sent bytes.
    pub sent_bytes: u64,
    /// Making the gradients smaller.
    pub encode_s: f64,
    /// Making numbers of them again.
    pub decode_s: f64,
    /// Bytes sent per second, in the reduction that went fastest: others wait for ranks that are late.
    pub link_rate: f64,
}

impl CompressionReport {
    /// How many times less was sent.
    pub fn ratio(&self) -> f64 {
        self.plain_bytes as f64 / self.sent_bytes.max(1) as f64
    }

    /// The rate of the link in bytes per second below which it pays: faster ones send the bytes that are saved in less time than is spent on saving
    /// them. `None` when nothing is saved.
    pub fn pays_below(&self) -> Option<f64> {
        let saved = self.plain_bytes.checked_sub(self.sent_bytes).filter(|saved| *saved > 0)?;
        Some(saved as f64 / self.codec_s().max(f64::MIN_POSITIVE))
    }

    fn codec_s(&self) -> f64 {
        self.encode_s + self.decode_s
    }

    /// Both together.
    pub(crate) fn with(self, other: CompressionReport) -> CompressionReport {
        CompressionReport {
            plain_bytes: self.plain_bytes + other.plain_bytes,
            sent_bytes: self.sent_bytes + other.sent_bytes,
            encode_s: self.encode_s + other.encode_s,
            decode_s: self.decode_s + other.decode_s,
            link_rate: self.link_rate.max(other.link_rate),
        }
    }

    fn encoded(&mut self, time: Duration) {
        self.encode_s += time.as_secs_f64();
    }

    fn decoded(&mut self, time: Duration) {
        self.decode_s += time.as_secs_f64();
    }
}

#[cfg(test)]
mod tests;
