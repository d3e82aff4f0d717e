//! Signatures of texts, of which the share of equal values estimates how similar the texts are.

use serde::{Deserialize, Serialize};

use super::shingles::{self, mix};
use super::{Banding, DedupError};
use crate::decimal::Decimal;

/// Most values of a signature.
const MAX_NUM_PERM: u16 = 1024;
/// Most words or characters of an n-gram.
const MAX_NGRAM: u16 = 256;
/// An empty bin. Values are smaller.
const EMPTY: u32 = u32::MAX;
/// Rounds of offers that are computed once. Texts of at least num_perm / 12 n-grams seldom need more.
const ROUNDS: usize = 64;

/// How texts are compared. The names and defaults are those of datasketch, text-dedup and BigCode.
///
/// A text is normalised first: Unicode's form C (NFC), then each character in lower case. Words are runs of
/// letters, digits and underscores, as `\w+` in regular expressions. For characters, runs of white space
/// count as one space. The text is the set of its n-grams. A shorter text is one n-gram, and a text without
/// any word or character is like no other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MinHash {
    /// Values of a signature, up to 1024. Default 256. More values estimate better: the standard deviation at
    /// similarity s is √(s(1-s)/num_perm), and each takes 2 bytes a row.
    pub num_perm: u16,
    /// Similarity from which rows are duplicates: the Jaccard index, |A ∩ B| / |A ∪ B|. Default 0.7.
    pub threshold: Decimal,
    /// Words or characters of an n-gram, up to 256. Default 5.
    pub ngram: u16,
    /// What n-grams are made of. Default words; take characters for languages that do not separate words.
    pub unit: Unit,
    /// Chooses the hash functions. Default 1.
    pub seed: u64,
}

/// What n-grams are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Runs of letters, digits and underscores.
    Word,
    /// Unicode characters.
    Character,
}

impl Default for MinHash {
    fn default() -> Self {
        let threshold = "0.7".parse().unwrap_or(Decimal::ONE);
        Self { num_perm: 256, threshold, ngram: 5, unit: Unit::Word, seed: 1 }
    }
}

impl MinHash {
    /// Checks the parameters.
    ///
    /// # Errors
    /// [`DedupError::Parameter`].
    pub fn check(&self) -> Result<(), DedupError> {
        let wrong =
            |parameter, value: String, way_out| Err(DedupError::Parameter { parameter, value, way_out });
        if self.num_perm == 0 || self.num_perm > MAX_NUM_PERM {
            return wrong("num_perm", self.num_perm.to_string(), "take 1 to 1024, usually 128 or 256");
        }
        if self.ngram == 0 || self.ngram > MAX_NGRAM {
            return wrong("ngram", self.ngram.to_string(), "take 1 to 256, usually 5");
        }
        if self.threshold.is_zero() || self.threshold > Decimal::ONE {
            return wrong(
                "threshold",
                self.threshold.to_string(),
                "take more than 0 and at most 1, usually 0.7",
            );
        }
        Ok(())
    }
}

/// The signature of a text: `num_perm` values of 16 bits, or none for a text without n-grams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    values: Box<[u16]>,
}

impl Signature {
    /// Whether the text had no n-gram, so that it is like no other text.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The values.
    pub fn values(&self) -> &[u16] {
        &self.values
    }

    /// The share of equal values, an estimate of the Jaccard index. 0 if one of the two is empty.
    #[expect(clippy::cast_precision_loss, reason = "a signature has at most 1024 values")]
    pub fn similarity(&self, other: &Self) -> f64 {
        if self.is_empty() || self.values.len() != other.values.len() {
            return 0.0;
        }
        equal_values(&self.values, &other.values) as f64 / self.values.len() as f64
    }
}

/// The number of places at which two signatures have the same value.
pub(super) fn equal_values(a: &[u16], b: &[u16]) -> usize {
    // Sums of 64 places fit the lanes of 16 bits that the values have.
    let pairs = a.chunks(64).zip(b.chunks(64));
    pairs.map(|(a, b)| usize::from(a.iter().zip(b).map(|(x, y)| u16::from(x == y)).sum::<u16>())).sum()
}

/// Makes signatures; the same on all machines.
///
/// The method is one permutation hashing (Li, Owen and Zhang, "One Permutation Hashing", NIPS 2012): one hash
/// chooses a bin and a value, and each bin keeps its least value. Empty bins are filled from others by the
/// densification of Mai et al. ("On Densification for Minwise Hashing", UAI 2019), so that the estimate stays
/// unbiased. 16 bits of each value are kept (Li and König, "b-Bit Minwise Hashing", WWW 2010): different
/// n-grams are taken for equal once in 65,536 times.
#[derive(Debug, Clone)]
pub struct MinHasher {
    parameters: MinHash,
    banding: Banding,
    /// Mixed into hashes of n-grams.
    grams: u64,
    /// Mixed into the choice of bins to fill.
    fill: u64,
    /// The bins to which full ones offer their values, for the first rounds.
    offers: Vec<Vec<u16>>,
}

impl MinHasher {
    /// Checks the parameters and chooses the bands.
    ///
    /// # Errors
    /// [`DedupError::Parameter`].
    pub fn new(parameters: MinHash) -> Result<Self, DedupError> {
        parameters.check()?;
        let banding = Banding::for_threshold(parameters.threshold, parameters.num_perm);
        let grams = mix(parameters.seed ^ 0x6e2d_6772_616d_7320);
        let fill = mix(parameters.seed ^ 0x6465_6e73_6966_7920);
        let mut hasher = Self { parameters, banding, grams, fill, offers: Vec::new() };
        let bins = 0..usize::from(hasher.parameters.num_perm);
        let offers = |round| bins.clone().map(|donor| hasher.offer(donor, round) as u16).collect();
        hasher.offers = (0..ROUNDS).map(offers).collect();
        Ok(hasher)
    }

    /// The parameters.
    pub fn parameters(&self) -> &MinHash {
        &self.parameters
    }

    /// How signatures are cut into bands.
    pub fn banding(&self) -> Banding {
        self.banding
    }

    /// The signature of a text.
    pub fn signature(&self, text: &str) -> Signature {
        let bins = u64::from(self.parameters.num_perm);
        let mut least = vec![EMPTY; usize::from(self.parameters.num_perm)];
        let mut any = false;
        shingles::each(text, self.parameters.unit, usize::from(self.parameters.ngram), |gram| {
            let hash = mix(gram ^ self.grams);
            let bin = bin(hash, bins);
            least[bin] = least[bin].min(low(hash).min(EMPTY - 1));
            any = true;
        });
        if !any {
            return Signature { values: Box::default() };
        }
        self.fill_empty(&mut least);
        Signature { values: least.into_iter().map(|value| (value & 0xffff) as u16).collect() }
    }

    /// The bin to which a bin offers its value in a round.
    fn offer(&self, donor: usize, round: usize) -> usize {
        let count = u64::from(self.parameters.num_perm);
        bin(mix(self.fill ^ (donor as u64 * 64 * count + round as u64)), count)
    }

    /// In each round each full bin offers its value to one bin, and an empty bin takes the first offer.
    fn fill_empty(&self, bins: &mut [u32]) {
        let full: Vec<usize> = (0..bins.len()).filter(|&bin| bins[bin] != EMPTY).collect();
        let mut missing = bins.len() - full.len();
        // One full bin of n leaves n·e^(-rounds/n) bins empty: 64·n rounds are never reached by chance.
        for round in 0..64 * bins.len() {
            let known = self.offers.get(round);
            for &donor in &full {
                if missing == 0 {
                    return;
                }
                let target = known.map_or_else(|| self.offer(donor, round), |offers| offers[donor].into());
                // Without a branch, which would be guessed wrong every other time.
                let before = bins[target];
                let is_empty = before == EMPTY;
                bins[target] = if is_empty { bins[donor] } else { before };
                missing -= usize::from(is_empty);
            }
        }
        let first = full.first().map_or(0, |&bin| bins[bin]);
        bins.iter_mut().filter(|value| **value == EMPTY).for_each(|value| *value = first);
    }
}

/// The high half of a hash as one of `bins` bins, all equally likely.
fn bin(hash: u64, bins: u64) -> usize {
    (((hash >> 32) * bins) >> 32) as usize
}

/// The low half of a hash.
fn low(hash: u64) -> u32 {
    (hash & 0xffff_ffff) as u32
}
