//! List prices of object stores, as data, and what requests cost by them. Pure but for reading a file of your own.

use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use shardd_simulation::Asked;

/// The lists that the program has, by name.
const LISTS: [(&str, &str); 4] = [
    ("s3-standard", include_str!("prices/s3-standard.toml")),
    ("gcs-standard", include_str!("prices/gcs-standard.toml")),
    ("azure-hot", include_str!("prices/azure-hot.toml")),
    ("r2", include_str!("prices/r2.toml")),
];

const GIB: f64 = (1_u64 << 30) as f64;

/// The prices of a store.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Prices {
    /// The service and its class of storage.
    pub(crate) service: String,
    /// The region they are for.
    pub(crate) region: String,
    /// When they were read.
    pub(crate) date: String,
    /// The unit of all of them.
    pub(crate) currency: String,
    /// 1,000 PUT, COPY, POST or LIST requests.
    pub(crate) class_a_per_1000: f64,
    /// 1,000 GET or HEAD requests.
    pub(crate) class_b_per_1000: f64,
    /// A GiB stored for a month.
    pub(crate) storage_per_gib_month: f64,
    /// A GiB read.
    #[serde(default)]
    pub(crate) read_per_gib: f64,
}

/// Why there are no prices.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PricesError {
    /// Neither a list nor a file.
    #[error("{name} is not a price list: use {lists}, or a file {name}.toml")]
    Unknown { name: String, lists: String },
    /// A file that cannot be read.
    #[error("cannot read the prices in {name}")]
    File { name: String, source: std::io::Error },
    /// A file that is no list.
    #[error("{name} is not a price list: {reason}")]
    Syntax { name: String, reason: String },
}

impl FromStr for Prices {
    type Err = PricesError;

    /// A list by its name, or a TOML file by its path.
    fn from_str(name: &str) -> Result<Prices, PricesError> {
        if let Some((_, text)) = LISTS.iter().find(|(list, _)| *list == name) {
            return Prices::parse(name, text);
        }
        if Path::new(name).extension().is_none_or(|ending| ending != "toml") {
            let lists: Vec<&str> = LISTS.iter().map(|(list, _)| *list).collect();
            return Err(PricesError::Unknown { name: name.to_owned(), lists: lists.join(", ") });
        }
        let text = std::fs::read_to_string(name);
        let text = text.map_err(|source| PricesError::File { name: name.to_owned(), source })?;
        Prices::parse(name, &text)
    }
}

impl Prices {
    fn parse(name: &str, text: &str) -> Result<Prices, PricesError> {
        let wrong = |reason: String| PricesError::Syntax { name: name.to_owned(), reason };
        let prices: Prices = toml::from_str(text).map_err(|error| wrong(error.message().to_owned()))?;
        let all = [
            prices.class_a_per_1000,
            prices.class_b_per_1000,
            prices.storage_per_gib_month,
            prices.read_per_gib,
        ];
        match all.iter().all(|price| price.is_finite() && *price >= 0.0) {
            true => Ok(prices),
            false => Err(wrong("a price is a number from 0 on".to_owned())),
        }
    }

    /// The price of requests and of the bytes of their answers.
    pub(crate) fn of(&self, asked: Asked) -> f64 {
        asked.class_a as f64 / 1000.0 * self.class_a_per_1000
            + asked.class_b as f64 / 1000.0 * self.class_b_per_1000
            + asked.read_bytes as f64 / GIB * self.read_per_gib
    }

    /// The price of bytes stored for a month.
    pub(crate) fn of_month(&self, stored_bytes: u64) -> f64 {
        stored_bytes as f64 / GIB * self.storage_per_gib_month
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_list_is_complete_and_says_where_and_when_it_holds() {
        for (name, _) in LISTS {
            let prices: Prices = name.parse().unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(
                prices.class_a_per_1000 > prices.class_b_per_1000 && prices.class_b_per_1000 > 0.0,
                "{name}"
            );
            assert!(prices.storage_per_gib_month > 0.0 && prices.currency == "USD", "{name}");
            assert!(!prices.region.is_empty() && !prices.service.is_empty(), "{name}");
            let (year, month) = prices.date.split_once('-').expect("a month");
            assert!(year.parse::<u32>().is_ok_and(|year| year >= 2026) && month.len() == 2, "{name}");
        }
    }

    #[test]
    fn a_price_is_the_sum_over_the_classes() {
        let prices: Prices = "s3-standard".parse().expect("a list");
        let asked = Asked { class_a: 2000, class_b: 10_000, read_bytes: 1 << 40 };
        assert!((prices.of(asked) - (0.010 + 0.004)).abs() < 1e-12);
        let dearer = Prices { read_per_gib: 0.09, ..prices.clone() };
        assert!((dearer.of(asked) - (0.014 + 1024.0 * 0.09)).abs() < 1e-9);
        assert!((prices.of_month(100 << 30) - 2.3).abs() < 1e-9);
    }

    #[test]
    fn lists_of_your_own_are_read_and_wrong_ones_are_refused() {
        let own = tempfile::Builder::new().suffix(".toml").tempfile().expect("a temporary file");
        let name = own.path().to_str().expect("UTF-8");
        let write = |text: &str| std::fs::write(own.path(), text).expect("written");
        let good = LISTS[0].1.replace("0.005", "0.004");
        write(&good);
        assert!((name.parse::<Prices>().expect("a list").class_a_per_1000 - 0.004).abs() < 1e-12);
        for bad in
            [good.replace("0.004", "-1.0"), good.replace("0.004", "nan"), good + "more = 1\n", String::new()]
        {
            write(&bad);
            assert!(matches!(name.parse::<Prices>(), Err(PricesError::Syntax { .. })), "{bad}");
        }
        assert!(matches!("/not/there.toml".parse::<Prices>(), Err(PricesError::File { .. })));
        let unknown = "s3".parse::<Prices>().unwrap_err().to_string();
        assert!(unknown.contains("s3-standard, gcs-standard"), "{unknown}");
    }
}
