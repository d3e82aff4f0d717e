//! Where a cluster can be asked while nodes come and go: the addresses that were given, and those of its nodes. Pure.

use shardd_store::http::HttpError;

use crate::failure::one_line;

/// The most addresses that are learned.
const MOST: usize = 64;

/// Why one of them does not answer, without advice for a person who chose it.
pub(crate) fn reason(error: &HttpError) -> String {
    match error {
        HttpError::Unreachable { reason, .. } => reason.clone(),
        error => one_line(error),
    }
}

/// Addresses of one cluster, one of which is asked at present.
#[derive(Debug, Clone)]
pub(crate) struct Addresses {
    all: Vec<String>,
    given: usize,
    at: usize,
}

impl Addresses {
    /// Those that were given, at least one; `first` is asked first.
    pub(crate) fn new(given: &[String], first: &str) -> Addresses {
        let at = given.iter().position(|address| address == first).unwrap_or(0);
        Addresses { all: given.to_vec(), given: given.len(), at }
    }

    /// The one to ask.
    pub(crate) fn current(&self) -> &str {
        &self.all[self.at]
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// Chooses the next one, as the current one does not answer.
    pub(crate) fn turn(&mut self) {
        self.at = (self.at + 1) % self.all.len();
    }

    /// Adds those of nodes, as the cluster has them. The newest replace those learned before when there are too many.
    pub(crate) fn learn<'a>(&mut self, addresses: impl Iterator<Item = &'a str>) {
        for address in addresses {
            let is_url = address.starts_with("http://") || address.starts_with("https://");
            if !is_url || self.all.iter().any(|known| known == address) {
                continue;
            }
            if self.all.len() - self.given >= MOST {
                let oldest = if self.at == self.given { self.given + 1 } else { self.given };
                self.all.remove(oldest);
                self.at -= usize::from(self.at > oldest);
            }
            self.all.push(address.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_has_its_turn() {
        let given = ["http://a", "http://b"].map(str::to_owned);
        let mut addresses = Addresses::new(&given, "http://b");
        addresses.learn(["http://c", "http://a", "not a url", ""].into_iter());
        let mut asked = Vec::new();
        for _ in 0..4 {
            asked.push(addresses.current().to_owned());
            addresses.turn();
        }
        assert_eq!(asked, ["http://b", "http://c", "http://a", "http://b"]);
    }

    #[test]
    fn learned_addresses_are_bounded_and_given_ones_stay() {
        let mut addresses = Addresses::new(&["http://given".to_owned()], "http://given");
        let many: Vec<String> = (0..500).map(|n| format!("http://n{n}")).collect();
        addresses.learn(many.iter().map(String::as_str));
        assert_eq!(addresses.count(), MOST + 1);
        assert_eq!(addresses.current(), "http://given");
        assert!(addresses.all.contains(&"http://n499".to_owned()));
        for late in 0..MOST {
            addresses.turn();
            let current = addresses.current().to_owned();
            addresses.learn([format!("http://late{late}").as_str()].into_iter());
            assert_eq!((addresses.count(), addresses.current()), (MOST + 1, current.as_str()));
        }
    }
}
