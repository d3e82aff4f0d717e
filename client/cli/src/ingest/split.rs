//! `--split train:0.9,test:0.1`: which rows go to which dataset.

use std::str::FromStr;

use shardd_ingest::HashRange;
use shardfmt::DatasetName;

/// Fractions are counted in these.
const WHOLE: u32 = 1_000_000;

/// Parts of the input, each with the ending of its dataset's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Split(Vec<(String, u32)>);

impl Split {
    /// The datasets and the ranges of rows that go to them; a row's place depends on its content and the seed.
    pub(crate) fn parts(
        &self,
        name: &DatasetName,
        seed: u64,
    ) -> Result<Vec<(DatasetName, HashRange)>, String> {
        let mut from = 0;
        let part = |(ending, size): &(String, u32)| {
            let range = HashRange::parts(seed, from, from + size, WHOLE);
            from += size;
            let full = format!("{name}-{ending}");
            Ok((full.parse().map_err(|error| format!("--split {ending}: {error}"))?, range))
        };
        self.0.iter().map(part).collect()
    }
}

impl FromStr for Split {
    type Err = String;

    /// `train:0.9,test:0.1`; the rest of the whole goes to `rest`, unless the last has no fraction and takes
    /// it.
    fn from_str(text: &str) -> Result<Split, String> {
        let refused = || {
            format!("`{text}`: give names and fractions that make up at most 1, such as train:0.9,test:0.1")
        };
        let mut parts: Vec<(String, u32)> = Vec::new();
        let mut left = WHOLE;
        let words: Vec<&str> = text.split(',').map(str::trim).collect();
        for (index, word) in words.iter().enumerate() {
            let is_last = index + 1 == words.len();
            let (name, size) = match word.split_once(':') {
                Some((name, fraction)) => (name, size_of(fraction).ok_or_else(refused)?),
                None if is_last => (*word, left),
                None => return Err(refused()),
            };
            left = left.checked_sub(size).filter(|_| size > 0).ok_or_else(refused)?;
            if name.is_empty() || parts.iter().any(|(known, _)| known == name) {
                return Err(refused());
            }
            parts.push((name.to_owned(), size));
        }
        if left > 0 {
            if parts.iter().any(|(known, _)| known == "rest") {
                return Err(refused());
            }
            parts.push(("rest".to_owned(), left));
        }
        if parts.len() < 2 { Err(refused()) } else { Ok(Split(parts)) }
    }
}

/// A fraction of at most six decimals.
fn size_of(fraction: &str) -> Option<u32> {
    let fraction: f64 = fraction.trim().parse().ok()?;
    let size = (fraction * f64::from(WHOLE)).round();
    (0.0..=f64::from(WHOLE)).contains(&size).then_some(size as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(text: &str) -> Option<Vec<(String, u32)>> {
        text.parse::<Split>().ok().map(|split| split.0)
    }

    #[test]
    fn what_is_left_goes_somewhere() {
        let named = |parts: &[(&str, u32)]| {
            Some(parts.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect::<Vec<_>>())
        };
        assert_eq!(sizes("train:0.9,test:0.1"), named(&[("train", 900_000), ("test", 100_000)]));
        assert_eq!(sizes("train:0.9"), named(&[("train", 900_000), ("rest", 100_000)]));
        assert_eq!(sizes("a:0.5,b:0.25,c"), named(&[("a", 500_000), ("b", 250_000), ("c", 250_000)]));
        for odd in
            ["", "train", "train:1", "a:0.6,b:0.6", "a:0,b:1", "a:x,b", "a:0.5,a:0.5", "a,b:0.5", "a:-1,b"]
        {
            assert_eq!(sizes(odd), None, "{odd}");
        }
    }

    #[test]
    fn parts_are_datasets_and_ranges_that_cover_all() {
        let split: Split = "train:0.9,test".parse().unwrap();
        let parts = split.parts(&"mnist".parse().unwrap(), 3).unwrap();
        assert_eq!(parts[0].0.as_ref(), "mnist-train");
        assert_eq!(parts[0].1, HashRange::parts(3, 0, 9, 10));
        assert_eq!(parts[1].1, HashRange::parts(3, 9, 10, 10));
        assert!("Test".parse::<Split>().is_err());
        assert!("Train:0.5,x".parse::<Split>().unwrap().parts(&"mnist".parse().unwrap(), 0).is_err());
    }
}
